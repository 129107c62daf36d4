"""Reader of Hugging Face configs: from ``config.json`` to a ``ModelSpec``, or a refusal.

What a model keeps is read as transformers reads it. Sizes must be in the file; traits that
configs leave out (biases, tied embeddings, head_dim) follow the rules of the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvhouse.errors import UnsupportedModel
from kvhouse.spec.families import FAMILIES, Family, Rule
from kvhouse.spec.fields import Fields, show, show_path
from kvhouse.spec.json_file import read_json_object
from kvhouse.spec.model import DTYPE_BYTES, FullAttention, ModelSpec
from kvhouse.spec.weights import Form, Sizes, count_weights

# The largest sizes that are believed, each far beyond any model that was built.
_MOST_LAYERS = 2**12
_MOST_WIDTH = 2**20
_MOST_HEADS = 2**16
_MOST_TOKENS = 2**32
_MOST_VOCABULARY = 2**26

# Fields that, once set, mean something which this reader would count wrongly.
_REFUSED = {
    "text_config": "the decoder is one part of a larger model, in a config of its own",
    "vision_config": "the decoder is one part of a multimodal model",
    "audio_config": "the decoder is one part of a multimodal model",
    "is_encoder_decoder": "an encoder and a decoder, which keep cross-attention KV",
    "add_cross_attention": "cross-attention layers keep KV of another sequence",
    "kv_lora_rank": "latent attention (MLA) keeps one compressed vector per token",
    "attention_chunk_size": "chunked attention keeps the KV of one chunk",
    "num_kv_shared_layers": "some layers share another layer's KV",
    "kv_sharing_modes": "some layers share another layer's KV",
    "per_layer_config": "layers differ from one another",
    "block_configs": "layers differ from one another",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "num_nextn_predict_layers": "multi-token-prediction layers keep KV of their own",
    "quantization_config": "its weights are quantised, so their bytes are not known from here",
    "compression_config": "its weights are quantised, so their bytes are not known from here",
}

# "attention" is how older versions of transformers wrote it.
_FULL = {"full_attention", "attention"}


def read_config_file(path: Path, name: str) -> ModelSpec:
    """Read one config file.

    Args:
        path: The file, ``config.json`` or of any other name.
        name: What the user calls the model.

    Raises:
        SpecError: The file or a field in it is missing, damaged or impossible.
        UnsupportedModel: The model is of a kind that cannot be counted yet.
    """
    spec = read_config(read_json_object(path), name, show_path(path))
    # Some quantised checkpoints say so only in a file beside the config.
    beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    if beside.exists():
        reason = _REFUSED["quantization_config"]
        raise UnsupportedModel(f"{show_path(path)}: not supported: {beside.name}: {reason}")
    return spec


def read_config(config: Mapping[str, object], name: str, where: str) -> ModelSpec:
    """Read a config that is already a mapping; ``where`` names its source in messages.

    Raises:
        SpecError: A field is missing, malformed or impossible.
        UnsupportedModel: The model is of a kind that cannot be counted yet.
    """
    family = _family(config, where)
    fields = Fields(config, where, {"dtype": ("dtype", "torch_dtype"), **family.names})
    _refuse_foreign(fields, config)
    sizes = _sizes(family, fields)
    _refuse_windows(family, fields, sizes)
    parameters, matmul_parameters = count_weights(sizes, _form(family, fields))
    layer = FullAttention(sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.head_dim)
    return ModelSpec(
        name=name,
        architecture=family.architecture,
        layers=(layer,) * sizes.layers,
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        max_length=sizes.max_length,
        parameters=parameters,
        matmul_parameters=matmul_parameters,
        dtype=_dtype(fields),
    )


def _family(config: Mapping[str, object], where: str) -> Family:
    fields = Fields(config, where)
    model_type = fields.text("model_type")
    if model_type is None:
        raise fields.error("model_type", "is missing")
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModel(
            f"{where}: model type {show(model_type)} is not supported; these are: {known}"
        )
    architectures = fields.texts("architectures")
    if architectures and architectures[0] != family.architecture:
        raise UnsupportedModel(
            f"{where}: architecture {show(architectures[0])} is not supported; "
            f"of model type {model_type!r} it is {family.architecture}"
        )
    return family


def _refuse_foreign(fields: Fields, config: Mapping[str, object]) -> None:
    for name, reason in _REFUSED.items():
        if config.get(name):
            raise UnsupportedModel(f"{fields.where}: not supported: field {name!r}: {reason}")


def _sizes(family: Family, fields: Fields) -> Sizes:
    layers = fields.integer("num_hidden_layers", _MOST_LAYERS)
    hidden = fields.integer("hidden_size", _MOST_WIDTH)
    heads = fields.integer("num_attention_heads", _MOST_HEADS)
    max_length = fields.integer("max_position_embeddings", _MOST_TOKENS)
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


def _refuse_windows(family: Family, fields: Fields, sizes: Sizes) -> None:
    """Refuse a model in which some layer forgets tokens within the longest context.

    A window longer than that context never cuts anything, so such a layer is full attention.
    """
    kinds = fields.texts("layer_types")
    if kinds and len(kinds) != sizes.layers:
        problem = f"names {len(kinds)} layers, but there are {sizes.layers}"
        raise fields.error("layer_types", problem)
    for kind in kinds:
        if kind not in _FULL:
            raise UnsupportedModel(f"{fields.where}: layer type {show(kind)} is not supported")
    window = _window(family, fields, sizes.layers)
    if window is not None and window <= sizes.max_length:
        absent = "" if fields.states("sliding_window") else " (left out, which means that much)"
        raise UnsupportedModel(
            f"{fields.where}: not supported: field 'sliding_window'{absent}: "
            f"layers keep only the last {window} tokens"
        )


def _window(family: Family, fields: Fields, layers: int) -> int | None:
    """The window of some layer, in tokens; None when no layer has one."""
    if family.window_switch:
        if not fields.flag("use_sliding_window", False):
            return None
        first = fields.optional_integer("max_window_layers", _MOST_LAYERS, least=0)
        if first is not None and first >= layers:
            return None
    if not fields.states("sliding_window"):
        return family.window_when_absent
    return fields.optional_integer("sliding_window", _MOST_TOKENS)


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
