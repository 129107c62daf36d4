"""Reader of Hugging Face configs: from ``config.json`` to a ``ModelSpec``, or a refusal.

What a model keeps is read as transformers reads it. Sizes must be in the file; traits that
configs leave out (biases, tied embeddings, head_dim) follow the rules of the family.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from kvhouse.spec.mtp import mtp_layers
from kvhouse.spec.weighed import with_weights

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


def read_config_file(path: Path, name: str) -> ModelSpec:
    """Read one config file.

    Args:
        path: The file, ``config.json`` or of any other name.
        name: What the user calls the model.

    Raises:
        SpecError: The file or a field in it is missing, damaged or impossible.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    values = read_json_object(path)
    # Some quantised checkpoints say so only in a file beside the config.
    beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    if beside.exists() and not values.get("quantization_config"):
        stated = read_json_object(beside) or {"quantization": {}}
        values = {**values, "quantization_config": stated}
    return read_config(values, name, show_path(path))


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
    if family is not None:
        # Named sizes must be in the file, whatever the class would fill in.
        _check_sizes(family, Fields(decoder.stated, decoder.where, {**_DTYPE, **family.names}))
    longest = decoder.optional_integer("max_position_embeddings", MOST_TOKENS)
    spec = ModelSpec(
        name=name,
        architecture=architecture,
        layers=decoder_layers(decoder),
        hidden_size=decoder.hidden,
        vocab_size=decoder.integer("vocab_size", _MOST_VOCABULARY),
        max_length=longest or NO_LIMIT,
        parameters=None,
        matmul_parameters=None,
        dtype=_dtype(decoder, any(v.get("quantization_config") for v in (config, decoder.stated))),
        mtp_layers=mtp_layers(decoder),
    )
    return with_weights(spec, config, decoder)


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


def _check_sizes(family: Family, fields: Fields) -> None:
    """Raise where a size is missing or does not fit another."""
    fields.integer("num_hidden_layers", MOST_LAYERS)
    hidden = fields.integer("hidden_size", _MOST_WIDTH)
    heads = fields.integer("num_attention_heads", _MOST_HEADS)
    fields.integer("max_position_embeddings", MOST_TOKENS)
    _check_kv_heads(family, fields, heads)
    _check_head_dim(family, fields, hidden, heads)
    if family.width_needed:
        fields.integer("intermediate_size", 2**4 * _MOST_WIDTH)
    else:
        fields.optional_integer("intermediate_size", 2**4 * _MOST_WIDTH)
    fields.integer("vocab_size", _MOST_VOCABULARY)
    if family.embedding_field is not None:
        fields.optional_integer(family.embedding_field, _MOST_WIDTH)


def _check_kv_heads(family: Family, fields: Fields, heads: int) -> None:
    name = "num_key_value_heads"
    if family.kv_heads is Rule.DERIVED:
        return
    # An explicit null says "as many as query heads"; only silence is ambiguous.
    if family.kv_heads is Rule.STATED and not fields.states(name):
        raise fields.error(name, "is missing")
    kv_heads = fields.optional_integer(name, _MOST_HEADS) or heads
    if heads % kv_heads:
        heads_name = fields.stated_name("num_attention_heads")
        raise fields.error(name, f"is {kv_heads}, which does not divide {heads_name!r} = {heads}")


def _check_head_dim(family: Family, fields: Fields, hidden: int, heads: int) -> None:
    if family.head_dim is Rule.STATED:
        fields.integer("head_dim", _MOST_HEADS)
        return
    if family.head_dim is Rule.OPTIONAL and fields.optional_integer("head_dim", _MOST_HEADS):
        return
    if hidden % heads:
        name, heads_name = map(fields.stated_name, ("hidden_size", "num_attention_heads"))
        raise fields.error(name, f"is {hidden}, not a multiple of {heads_name!r} = {heads}")


def _dtype(fields: Fields, quantised: bool) -> str:
    """The dtype of the published weights, or of those that a quantised checkpoint leaves alone.

    Configs that leave it out come from before transformers recorded it, when weights were saved
    in float32; quantised checkpoints are younger and keep the rest in bfloat16.
    """
    dtype = fields.text("dtype")
    if dtype is None:
        return "bfloat16" if quantised else "float32"
    if dtype not in DTYPE_BYTES:
        problem = f"is {show(dtype)}, not one of {', '.join(DTYPE_BYTES)}"
        raise fields.error(fields.stated_name("dtype"), problem)
    return dtype
