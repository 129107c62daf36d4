"""Reader of GGUF files: from the header to a ``ModelSpec``, or a refusal.

Sizes come from the metadata and are checked against the shapes of the tensors, so that neither
can mislead alone. Weights are counted from the tensors themselves.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.spec.fields import Fields, show, show_path
from kvhouse.spec.gguf_header import Header, Tensor, read_header
from kvhouse.spec.layers import FullAttention
from kvhouse.spec.model import ModelSpec

# The architectures whose layers are plain full attention, with the class that runs them.
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}

# Metadata below the architecture's name that, once set, means something counted wrongly here.
_REFUSED = {
    "expert_count": "a mixture of experts",
    "nextn_predict_layers": "multi-token-prediction layers keep KV of their own",
    "attention.kv_lora_rank": "latent attention (MLA) keeps one compressed vector per token",
    "attention.key_length_mla": "latent attention (MLA) keeps one compressed vector per token",
    "attention.chunk_size": "chunked attention keeps the KV of one chunk",
    "attention.shared_kv_layers": "some layers share another layer's KV",
}

_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_MOST = 2**32


def read_gguf(path: Path, name: str) -> ModelSpec:
    """Read one GGUF file, its header only.

    Args:
        path: The file.
        name: What the user calls the model.

    Raises:
        SpecError: The file is missing, damaged or contradicts itself, or the ``gguf`` package is
            not installed.
        UnsupportedModel: The model is of a kind that cannot be counted yet.
    """
    header = read_header(path)
    fields = Fields(header.metadata, show_path(path))
    architecture = _architecture(fields)
    _refuse_foreign(fields, header, architecture)
    layers = fields.integer(f"{architecture}.block_count", _MOST)
    hidden = fields.integer(f"{architecture}.embedding_length", _MOST)
    max_length = fields.integer(f"{architecture}.context_length", _MOST)
    _refuse_window(fields, architecture, max_length)
    layer = _attention(fields, architecture, hidden)
    weights = [tensor for tensor in header.tensors.values() if not _is_rope_table(tensor)]
    _check_layers(header, fields, layer, layers, hidden)
    vocab = _vocabulary(header, fields, hidden)
    return ModelSpec(
        name=name,
        architecture=_ARCHITECTURES[architecture],
        layers=(layer,) * layers,
        hidden_size=hidden,
        vocab_size=vocab,
        max_length=max_length,
        parameters=sum(tensor.elements for tensor in weights),
        matmul_parameters=_matmul_parameters(header, weights),
        dtype=_dtype(weights),
        stored_weight_bytes=sum(tensor.bytes for tensor in weights),
    )


def _architecture(fields: Fields) -> str:
    architecture = fields.text("general.architecture")
    if architecture is None:
        raise fields.error("general.architecture", "is missing")
    if architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise UnsupportedModel(
            f"{fields.where}: GGUF architecture {show(architecture)} is not supported; "
            f"these are: {known}"
        )
    return architecture


def _refuse_foreign(fields: Fields, header: Header, architecture: str) -> None:
    kind = fields.text("general.type")
    if kind not in (None, "model"):
        raise UnsupportedModel(f"{fields.where}: holds {show(kind)}, not a whole model")
    if (fields.optional_integer("split.count", _MOST, least=0) or 1) > 1:
        raise UnsupportedModel(f"{fields.where}: one of several files of a split model")
    for key, reason in _REFUSED.items():
        if header.metadata.get(f"{architecture}.{key}"):
            full = f"{architecture}.{key}"
            raise UnsupportedModel(f"{fields.where}: not supported: field {full!r}: {reason}")
    if not fields.flag(f"{architecture}.attention.causal", True):
        raise UnsupportedModel(f"{fields.where}: not supported: an encoder, which keeps no KV")


def _refuse_window(fields: Fields, architecture: str, max_length: int) -> None:
    key = f"{architecture}.attention.sliding_window"
    window = fields.optional_integer(key, _MOST, least=0)
    if window and window <= max_length:
        raise UnsupportedModel(
            f"{fields.where}: not supported: field {key!r}: "
            f"layers keep only the last {window} tokens"
        )


def _attention(fields: Fields, architecture: str, hidden: int) -> FullAttention:
    """The attention of each layer; what is left out follows llama.cpp's rules."""
    prefix = f"{architecture}.attention."
    heads = fields.integer(f"{prefix}head_count", _MOST)
    kv_heads = fields.optional_integer(f"{prefix}head_count_kv", _MOST) or heads
    if heads % kv_heads:
        problem = f"is {kv_heads}, which does not divide the {heads} query heads"
        raise fields.error(f"{prefix}head_count_kv", problem)
    lengths = [
        fields.optional_integer(f"{prefix}{vector}_length", _MOST) for vector in ("key", "value")
    ]
    if None in lengths and hidden % heads:
        problem = f"is {heads}, which does not divide the hidden size {hidden}"
        raise fields.error(f"{prefix}head_count", problem)
    key_dim, value_dim = (length or hidden // heads for length in lengths)
    return FullAttention(heads, kv_heads, key_dim, value_dim)


def _check_layers(
    header: Header, fields: Fields, layer: FullAttention, layers: int, hidden: int
) -> None:
    """Check each layer's query, key and value matrices against the sizes in the metadata."""
    wanted = layer.query_heads * layer.key_dim
    wanted += sum(count * elements for count, elements in layer.vectors)
    for index in range(layers):
        parts = [header.tensors.get(f"blk.{index}.attn_{part}.weight") for part in ("q", "k", "v")]
        fused = header.tensors.get(f"blk.{index}.attn_qkv.weight")
        found = [tensor for tensor in (*parts, fused) if tensor is not None]
        rows = sum(tensor.elements // tensor.shape[0] for tensor in found)
        if any(tensor.shape[0] != hidden for tensor in found) or rows != wanted:
            raise SpecError(
                f"{fields.where}: contradicts itself: the attention matrices of layer {index} have "
                f"{rows} rows; by the metadata there are {layers} layers with {wanted} rows each"
            )


def _vocabulary(header: Header, fields: Fields, hidden: int) -> int:
    embedding = header.tensors.get(_EMBEDDING)
    if embedding is None:
        raise SpecError(f"{fields.where}: tensor {_EMBEDDING!r} is missing")
    for tensor in (embedding, header.tensors.get(_HEAD, embedding)):
        if tensor.shape != (hidden, *embedding.shape[1:]) or len(tensor.shape) != 2:
            raise SpecError(
                f"{fields.where}: contradicts itself: tensor {tensor.name!r} has shape "
                f"{tensor.shape}, the hidden size is {hidden}"
            )
    return embedding.shape[1]


def _is_rope_table(tensor: Tensor) -> bool:
    """Whether a tensor holds rotary frequencies: constants of the position, not weights."""
    return tensor.name.startswith(("rope_freqs.", "rope_factors_"))


def _matmul_parameters(header: Header, weights: list[Tensor]) -> int:
    matrices = sum(t.elements for t in weights if len(t.shape) > 1 and t.name != _EMBEDDING)
    tied = 0 if _HEAD in header.tensors else header.tensors[_EMBEDDING].elements
    return matrices + tied


def _dtype(weights: list[Tensor]) -> str:
    """The float type of most weights, or the one that quantised blocks are widened to."""
    elements: Counter[str] = Counter()
    for tensor in weights:
        elements[tensor.type] += tensor.elements
    return _FLOATS.get(elements.most_common(1)[0][0], "float16")
