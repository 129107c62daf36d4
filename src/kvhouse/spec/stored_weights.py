"""What the tensors of a checkpoint say of its weights: bytes, parameters, scales.

Bytes are exact whatever the checkpoint is. A quantised one stores several weights in one element
and scales beside them; how many weights those are is only said where the config's
``quantization_config`` names a layout that is known here.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvhouse.spec.fields import show
from kvhouse.spec.safetensors_header import StoredTensor

_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
#: Parts of a quantised weight beside the weight, as the last part of a tensor's name.
_BESIDE = re.compile(
    r"(weight|input|output|activation|prob|softmax|[kvq]|kv|kv_cache)(_global)?_scale(_inv|_2)?"
    r"|scales|\w+_scales|qzeros|g_idx|(weight|input)_(zero_point|shape|g_idx)"
    r"|(nested_)?(absmax|quant_map)|SCB|weight_format|bitsandbytes__\w+"
)
#: Scales of an fp8 KV cache: of keys and values, or of what makes them.
_KV_SCALES = re.compile(r"(^|\.)([kv]_scale|kv_scale|kv_cache_scale|[kv]_proj\.output_scale)$")
#: Constants of the position, which older checkpoints store.
_CONSTANTS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|position_ids|attn\.(masked_)?bias)$")
#: Tables that are looked up, not multiplied with, and parts that no text token passes through.
_TABLES = re.compile(
    r"(^|[._])(embed_tokens|embed_tokens_per_layer|wte|wpe|word_embeddings|embed_positions"
    r"|embeddings?|embed_in|tok_embeddings|position_embeddings|token_embd)(_module)?\.weight$"
)
_OTHER_INPUT = re.compile(
    r"(^|[._])(visual|vision\w*|image\w*|audio\w*|mm_projector|multi_modal_projector"
    r"|patch_embed\w*|speech\w*|sound\w*)([._]|$)"
)
_FURTHER = re.compile(r"(^|\.)(mtp|nextn)\w*\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,6})\.")
_EXPERT = re.compile(
    r"(.*\.experts|.*\.block_sparse_moe(?=\.(?:in|out)put_linear))\.(?:(\d{1,6})\.)?"
)
_MOST_COUNTERS = 2**16
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output)\.weight$")


@dataclass(frozen=True, slots=True)
class Packing:
    """How many weights one element of a quantised tensor holds.

    Attributes:
        quantised: Whether any weights are quantised, so that scales may lie beside them.
        bits: By how the last part of a name ends, bits of one weight in integers of that name.
        unknown: Why the weights cannot be told; empty where they can.
    """

    quantised: bool
    bits: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The weights of a checkpoint, of which tied ones are counted once.

    Attributes:
        bytes: Bytes as stored.
        by_dtype: The same by the format's name of the dtype, the largest first.
        parameters: Weights; None where a quantised layout does not tell.
        matmul_parameters: Those that one token is multiplied with, as in ``ModelSpec``; None also
            where a token's number of experts is not known.
        unknown: Why they are not known; empty where they are.
        further: Bytes of them in layers that predict further tokens.
        kv_scales: Names of the tensors that are scales of an fp8 KV cache.
        dtype: The float type of most weights, a key of ``DTYPE_BYTES``; None where none is.
    """

    bytes: int
    by_dtype: dict[str, int]
    parameters: int | None
    matmul_parameters: int | None
    unknown: str
    further: int
    kv_scales: tuple[str, ...]
    dtype: str | None


def count_stored(
    tensors: Mapping[str, StoredTensor],
    *,
    layers: int,
    tied: bool,
    packing: Packing,
    experts_used: int | None,
) -> StoredWeights:
    """Count the weights of a checkpoint.

    Args:
        tensors: Every tensor by its name.
        layers: Layers of the model; those after them predict further tokens.
        tied: Whether the output projection is the embedding table, by the config.
        packing: How quantised weights are packed.
        experts_used: Experts that one token is sent to in each layer; None where it is not known.
    """
    kept = [tensor for name, tensor in tensors.items() if not (tied and _is_head(name, tensors))]
    by_dtype: Counter[str] = Counter()
    floats: Counter[str] = Counter()
    for tensor in kept:
        by_dtype[tensor.dtype] += tensor.bytes
        if tensor.dtype in _FLOATS:
            floats[_FLOATS[tensor.dtype]] += tensor.elements
    unknown = packing.unknown
    logical: dict[str, int] = {}
    for tensor in kept:
        weights = _weights(tensor, packing)
        if weights is None:
            unknown = unknown or f"how tensor {show(tensor.name)} is packed is not known"
        else:
            logical[tensor.name] = weights
    has_head = any(map(_is_projection, tensors)) and not tied
    matmul = _matmul(kept, logical, layers, experts_used, has_head)
    if matmul is None and not unknown:
        unknown = "how many experts a token is sent to is not known"
    return StoredWeights(
        bytes=sum(by_dtype.values()),
        by_dtype=dict(by_dtype.most_common()),
        parameters=None if unknown else sum(logical.values()),
        matmul_parameters=None if unknown else matmul,
        unknown=unknown,
        further=sum(tensor.bytes for tensor in kept if _is_further(tensor.name, layers)),
        kv_scales=tuple(name for name in tensors if _KV_SCALES.search(name)),
        dtype=floats.most_common(1)[0][0] if floats else None,
    )


def _is_projection(name: str) -> bool:
    """Whether a tensor goes by the name of the output projection."""
    return _HEAD.search(name) is not None and not _LAYER.search(name)


def _is_head(name: str, tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a tensor is a copy of the embedding table under the output projection's name."""
    if not _is_projection(name):
        return False
    head = tensors[name]
    return any(
        other != name and _TABLES.search(other) and tensor.shape == head.shape
        for other, tensor in tensors.items()
    )


def _weights(tensor: StoredTensor, packing: Packing) -> int | None:
    """The weights in a tensor; 0 for scales and constants, None where it is not known."""
    last = tensor.name.rsplit(".", 1)[-1]
    if _CONSTANTS.search(tensor.name) or _KV_SCALES.search(tensor.name):
        return 0
    if packing.quantised and _BESIDE.fullmatch(last):
        return 0
    for ending, bits in packing.bits.items():
        if last.endswith(ending) and tensor.dtype in ("I32", "U8", "I8"):
            return tensor.bytes * 8 // bits
    if tensor.dtype.startswith(("F", "BF")) or (packing.quantised and tensor.dtype == "I8"):
        return tensor.elements
    # Few integers are counters and tables of a class; many are weights in an unknown layout.
    return None if packing.quantised and tensor.elements > _MOST_COUNTERS else 0


def _is_further(name: str, layers: int) -> bool:
    numbered = _LAYER.search(name)
    beyond = numbered is not None and int(numbered[1]) >= layers
    return (beyond or _FURTHER.search(name) is not None) and not _OTHER_INPUT.search(name)


def _matmul(
    kept: Iterable[StoredTensor],
    logical: Mapping[str, int],
    layers: int,
    experts_used: int | None,
    has_head: bool,
) -> int | None:
    """The weights that one token is multiplied with; None where its experts are not known."""
    total, table = 0, 0
    experts: defaultdict[str, _Experts] = defaultdict(_Experts)
    for tensor in kept:
        name, weights = tensor.name, logical.get(tensor.name, 0)
        vector = len(tensor.shape) < 2 or name.endswith("bias")
        if vector or _OTHER_INPUT.search(name) or _is_further(name, layers):
            continue
        if _TABLES.search(name):
            table = max(table, weights)
        elif expert := _EXPERT.match(name):
            experts[expert[1]].add(tensor, weights, expert[2])
        else:
            total += weights
    for group in experts.values():
        if experts_used is None or not group.numbers:
            return None
        total += group.weights * experts_used // len(group.numbers)
    return total if has_head else total + table


class _Experts:
    """The experts of one layer: their numbers, and their weights together."""

    def __init__(self) -> None:
        self.weights = 0
        self.numbers: set[int] = set()

    def add(self, tensor: StoredTensor, weights: int, number: str | None) -> None:
        self.weights += weights
        if number is not None:
            self.numbers.add(int(number))
        elif len(tensor.shape) > 2:
            self.numbers.update(range(min(tensor.shape[0], _MOST_COUNTERS)))


def packing_of(quantization: Mapping[str, object] | None) -> Packing:
    """How weights are packed, from a config's ``quantization_config``; None for none."""
    if quantization is None:
        return Packing(quantised=False)
    method = quantization.get("quant_method")
    if method in ("awq", "gptq", "gptqmodel", "auto-round", "intel/auto-round"):
        return _integers(method, "qweight", quantization.get("bits", quantization.get("w_bit")))
    if method in ("fp8", "fbgemm_fp8"):
        return Packing(quantised=True)
    if method == "mxfp4":
        return Packing(True, {"_blocks": 4})
    if method == "bitsandbytes":
        return Packing(True, {"weight": 4 if quantization.get("load_in_4bit") else 8})
    if (algorithm := quantization.get("quant_algo")) is not None:  # ModelOpt
        return Packing(True, {"weight": 4} if _packs(algorithm) else {})
    if method in ("compressed-tensors", "modelopt"):
        packed = "weight" if method == "modelopt" else "weight_packed"
        return _integers(method, packed, _bits_of_groups(quantization.get("config_groups")))
    return Packing(True, unknown=f"quantisation method {show(method)} is not known")


def _packs(algorithm: object) -> bool:
    """Whether ModelOpt packs two weights in a byte, in all layers or in some."""
    return isinstance(algorithm, str) and ("4" in algorithm or algorithm == "MIXED_PRECISION")


def _integers(method: object, name: str, bits: object) -> Packing:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
        return Packing(True, unknown=f"of quantisation {show(method)} the bits are {show(bits)}")
    return Packing(True, {name: bits})


def _bits_of_groups(groups: object) -> object:
    """The bits of a weight, if they are the same in all groups of layers; else what there is."""
    found: list[object] = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
        if bits not in found:
            found.append(bits)
    return found[0] if len(found) == 1 else found
