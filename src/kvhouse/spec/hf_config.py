"""Reader of Hugging Face configs: from ``config.json`` to a ``ModelSpec``, or a refusal.

What a model keeps is read as transformers reads it. Sizes must be in the file; traits that
configs leave out (biases, tied embeddings, head_dim) follow the rules of the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvhouse.errors import UnsupportedModel
from kvhouse.spec.config import (
    MOST_LAYERS,
    MOST_TOKENS,
    Config,
    architectures,
    decoder_config,
)
from kvhouse.spec.decoder import decoder_layers
from kvhouse.spec.families import FAMILIES, Family, Rule
from kvhouse.spec.fields import Fields, show, show_path
from kvhouse.spec.json_file import read_json_object
from kvhouse.spec.model import DTYPE_BYTES, NO_LIMIT, ModelSpec
from kvhouse.spec.weights import Form, Sizes, count_weights

_MOST_WIDTH = 2**20
_MOST_HEADS = 2**16
_MOST_VOCABULARY = 2**26

_DTYPE = {"dtype": ("dtype", "torch_dtype")}
#: How the names of classes with a language-model head end.
_HEADS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "WithLMHead", "LMHead")

# Fields that, once set, say that the KV is not what the class of the config keeps.
_REFUSED = {
    "is_encoder_decoder": "an encoder and a decoder, of which the decoder alone cannot run",
    "block_configs": "layers differ from one another",
    "kv_sharing_modes": "some layers share another layer's KV",
}
# The same, for the classes that know no such thing.
_FOREIGN = {
    "text_config": "the decoder is one part of a larger model, in a config of its own",
    "kv_lora_rank": "latent attention (MLA), which this class does not have",
    "num_kv_shared_layers": "shared KV, which this class does not have",
    "per_layer_config": "layers that differ from one another, which this class does not have",
}
# Fields that, once set, mean weights which are not counted here, or not stored in one dtype.
_UNCOUNTED = {
    "quantization_config": "its weights are quantised",
    "compression_config": "its weights are quantised",
    "vision_config": "beside the decoder it has a part for images",
    "audio_config": "beside the decoder it has a part for sound",
    "add_cross_attention": "it has cross attention",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "num_nextn_predict_layers": "it has layers that predict several tokens",
}


def read_config_file(path: Path, name: str) -> ModelSpec:
    """Read one config file.

    Args:
        path: The file, ``config.json`` or of any other name.
        name: What the user calls the model.

    Raises:
        SpecError: The file or a field in it is missing, damaged or impossible.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    spec = read_config(read_json_object(path), name, show_path(path))
    # Some quantised checkpoints say so only in a file beside the config.
    beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    if beside.exists() and not spec.weights_unknown:
        reason = f"its weights are quantised, as {show_path(beside.name)} says"
        spec = replace(spec, parameters=None, matmul_parameters=None, weights_unknown=reason)
    return spec


def read_config(config: Mapping[str, object], name: str, where: str) -> ModelSpec:
    """Read a config that is already a mapping; ``where`` names its source in messages.

    Raises:
        SpecError: A field is missing, malformed or impossible.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    decoder = decoder_config(config, where)
    architecture = _architecture(config, where, decoder)
    _refuse_foreign(config, decoder)
    family = FAMILIES.get(decoder.model_type)
    counted: tuple[int, int] | None = None
    if family is not None:
        # Named sizes must be in the file, whatever the class would fill in.
        fields = Fields(decoder.stated, decoder.where, {**_DTYPE, **family.names})
        sizes = _sizes(family, fields)
        counted = count_weights(sizes, _form(family, fields))
    reason = _uncounted(config, decoder, family)
    parameters, matmul_parameters = (None, None) if reason or not counted else counted
    longest = decoder.optional_integer("max_position_embeddings", MOST_TOKENS)
    return ModelSpec(
        name=name,
        architecture=architecture,
        layers=decoder_layers(decoder),
        hidden_size=decoder.hidden,
        vocab_size=decoder.integer("vocab_size", _MOST_VOCABULARY),
        max_length=longest or NO_LIMIT,
        parameters=parameters,
        matmul_parameters=matmul_parameters,
        dtype=_dtype(decoder),
        weights_unknown=reason,
    )


def _architecture(config: Mapping[str, object], where: str, decoder: Config) -> str:
    """The class that runs the model, which must have a language-model head."""
    known = architectures().get(decoder.outer_type, {}).get("class") or decoder.entry.get("class")
    stated = Fields(config, where).texts("architectures")
    if not stated:
        return known or decoder.model_type
    foreign = decoder.outer_type in FAMILIES or not stated[0].endswith(_HEADS)
    if stated[0] != known and (foreign or not stated[0].isidentifier() or len(stated[0]) > 100):
        expected = f"; of model type {decoder.outer_type!r} it is {known}" if known else ""
        raise UnsupportedModel(
            f"{where}: architecture {show(stated[0])} is not supported{expected}"
        )
    return stated[0]


def _refuse_foreign(config: Mapping[str, object], decoder: Config) -> None:
    refused = dict(_REFUSED)
    if decoder.entry.get("cross") == "always":  # the class is the decoder of such a pair
        del refused["is_encoder_decoder"]
    if decoder.model_type == "nemotron-nas":
        del refused["block_configs"]
    foreign = _FOREIGN if decoder.model_type in FAMILIES else {}
    for values, reasons in ((config, refused), (decoder.stated, refused | foreign)):
        for name, reason in reasons.items():
            if values.get(name):
                raise UnsupportedModel(f"{decoder.where}: not supported: field {name!r}: {reason}")


def _uncounted(config: Mapping[str, object], decoder: Config, family: Family | None) -> str:
    """Why the weights are not known; empty where they are."""
    for values in (config, decoder.stated):
        for name, reason in _UNCOUNTED.items():
            if values.get(name):
                return f"{reason} (field {name!r})"
    if family is None or decoder.outer_type != decoder.model_type:
        return f"weights of model type {decoder.outer_type!r} are not counted"
    return ""


def _sizes(family: Family, fields: Fields) -> Sizes:
    layers = fields.integer("num_hidden_layers", MOST_LAYERS)
    hidden = fields.integer("hidden_size", _MOST_WIDTH)
    heads = fields.integer("num_attention_heads", _MOST_HEADS)
    max_length = fields.integer("max_position_embeddings", MOST_TOKENS)
    padding = family.position_padding
    return Sizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(family, fields, heads),
        head_dim=_head_dim(family, fields, hidden, heads),
        intermediate=_intermediate(family, fields, hidden),
        vocab=fields.integer("vocab_size", _MOST_VOCABULARY),
        embedding=_embedding(family, fields, hidden),
        positions=0 if padding is None else max_length + padding,
        max_length=max_length,
    )


def _kv_heads(family: Family, fields: Fields, heads: int) -> int:
    name = "num_key_value_heads"
    if family.kv_heads is Rule.DERIVED:
        return heads
    # An explicit null says "as many as query heads"; only silence is ambiguous.
    if family.kv_heads is Rule.STATED and not fields.states(name):
        raise fields.error(name, "is missing")
    kv_heads = fields.optional_integer(name, _MOST_HEADS) or heads
    if heads % kv_heads:
        heads_name = fields.stated_name("num_attention_heads")
        raise fields.error(name, f"is {kv_heads}, which does not divide {heads_name!r} = {heads}")
    return kv_heads


def _head_dim(family: Family, fields: Fields, hidden: int, heads: int) -> int:
    if family.head_dim is Rule.STATED:
        return fields.integer("head_dim", _MOST_HEADS)
    stated = None
    if family.head_dim is Rule.OPTIONAL:
        stated = fields.optional_integer("head_dim", _MOST_HEADS)
    if stated is not None:
        return stated
    if hidden % heads:
        name, heads_name = map(fields.stated_name, ("hidden_size", "num_attention_heads"))
        raise fields.error(name, f"is {hidden}, not a multiple of {heads_name!r} = {heads}")
    return hidden // heads


def _intermediate(family: Family, fields: Fields, hidden: int) -> int:
    if family.mlp_ratio is None:
        return fields.integer("intermediate_size", 2**4 * _MOST_WIDTH)
    stated = fields.optional_integer("intermediate_size", 2**4 * _MOST_WIDTH)
    return family.mlp_ratio * hidden if stated is None else stated


def _embedding(family: Family, fields: Fields, hidden: int) -> int:
    if family.embedding_field is None:
        return hidden
    return fields.optional_integer(family.embedding_field, _MOST_WIDTH) or hidden


def _form(family: Family, fields: Fields) -> Form:
    vectors = 2 if family.layer_norm else 1
    return Form(
        gated_mlp=family.gated_mlp,
        qkv_bias=family.qkv_bias(fields),
        output_bias=family.output_bias(fields),
        mlp_bias=family.mlp_bias(fields),
        head_bias=family.head_bias(fields),
        norm_vectors=vectors if family.norm_weights(fields) else 0,
        layer_norms=family.layer_norms,
        final_norm=family.final_norm(fields),
        qk_norm=family.qk_norm(fields),
        tied=fields.flag("tie_word_embeddings", family.tied),
    )


def _dtype(fields: Fields) -> str:
    """The dtype of the published weights.

    Configs that leave it out come from before transformers recorded it, when weights were saved
    in float32.
    """
    dtype = fields.text("dtype")
    if dtype is None:
        return "float32"
    if dtype not in DTYPE_BYTES:
        problem = f"is {show(dtype)}, not one of {', '.join(DTYPE_BYTES)}"
        raise fields.error(fields.stated_name("dtype"), problem)
    return dtype
