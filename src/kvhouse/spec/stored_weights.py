"""What the tensors of a checkpoint say of its weights: bytes, parameters, scales.

Bytes are exact whatever the checkpoint is. A quantised one stores several weights in one element
and scales beside them; how many weights those are is only said where the config's
``quantization_config`` names a layout that is known here.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kvhouse.spec.fields import show
from kvhouse.spec.packing import Packing
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
#: A number that is a whole part of a name.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
#: Convolutions of one channel at a time: multiplied element by element.
_ELEMENTWISE = re.compile(r"(^|\.)(conv1d|short_conv|conv)\.weight$")
_MOST_COUNTERS = 2**16
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output)\.weight$")


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


@dataclass(frozen=True, slots=True)
class _Role:
    """What a tensor's name says of it, whatever numbers of layers and experts are in it.

    Attributes:
        last: The last part of the name.
        constant: No weight: a table of positions, a mask, or a scale of the KV cache.
        kv_scale: The latter.
        beside: A scale or the like, if the checkpoint is quantised.
        table: An embedding table.
        head: The output projection.
        apart: No text token is multiplied with it as a matrix: a bias, a convolution, or a part for
            images or sound.
        further: Of a part that predicts further tokens.
        expert: Of a routed expert.
    """

    last: str
    constant: bool
    kv_scale: bool
    beside: bool
    table: bool
    head: bool
    apart: bool
    further: bool
    expert: bool


@lru_cache(maxsize=2**12)
def _role(template: str) -> _Role:
    """The role of a name whose numbers are replaced; few such names make a large model."""
    last = template.rsplit(".", 1)[-1]
    kv_scale = _KV_SCALES.search(template) is not None
    other = _OTHER_INPUT.search(template) is not None
    return _Role(
        last=last,
        constant=kv_scale or _CONSTANTS.search(template) is not None,
        kv_scale=kv_scale,
        beside=_BESIDE.fullmatch(last) is not None,
        table=_TABLES.search(template) is not None,
        head=_HEAD.search(template) is not None and ".0." not in template,
        apart=other or template.endswith("bias") or _ELEMENTWISE.search(template) is not None,
        further=_FURTHER.search(template) is not None and not other,
        expert=_EXPERT.match(template) is not None,
    )


def _role_of(name: str) -> _Role:
    return _role(_NUMBER.sub("0", name))


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
    roles = {name: _role_of(name) for name in tensors}
    tables = {tensors[name].shape for name, role in roles.items() if role.table}
    by_dtype: Counter[str] = Counter()
    floats: Counter[str] = Counter()
    unknown, parameters, further = packing.unknown, 0, 0
    matmul = _Matmul()
    for name, tensor in tensors.items():
        role = roles[name]
        if tied and role.head and tensor.shape in tables:
            continue  # a copy of the embedding table
        by_dtype[tensor.dtype] += tensor.bytes
        if tensor.dtype in _FLOATS:
            floats[_FLOATS[tensor.dtype]] += tensor.elements
        weights = _weights(tensor, role, packing)
        if weights is None:
            unknown = unknown or f"how tensor {show(name)} is packed is not known"
            continue
        parameters += weights
        if role.further or _is_beyond(name, layers):
            further += tensor.bytes
        else:
            matmul.add(tensor, role, weights)
    multiplied = matmul.total(experts_used)
    if multiplied is None and not unknown:
        unknown = "how many experts a token is sent to is not known"
    return StoredWeights(
        bytes=sum(by_dtype.values()),
        by_dtype=dict(by_dtype.most_common()),
        parameters=None if unknown else parameters,
        matmul_parameters=None if unknown else multiplied,
        unknown=unknown,
        further=further,
        kv_scales=tuple(name for name, role in roles.items() if role.kv_scale),
        dtype=floats.most_common(1)[0][0] if floats else None,
    )


def _weights(tensor: StoredTensor, role: _Role, packing: Packing) -> int | None:
    """The weights in a tensor; 0 for scales and constants, None where it is not known."""
    if role.constant or (packing.quantised and role.beside):
        return 0
    for ending, bits in packing.bits.items():
        if role.last.endswith(ending) and tensor.dtype in ("I32", "U8", "I8"):
            return tensor.bytes * 8 // bits
    if tensor.dtype.startswith(("F", "BF")) or (packing.quantised and tensor.dtype == "I8"):
        return tensor.elements
    # Few integers are counters and tables of a class; many are weights in an unknown layout.
    return None if packing.quantised and tensor.elements > _MOST_COUNTERS else 0


def _is_beyond(name: str, layers: int) -> bool:
    """Whether a tensor is of a layer after the model's own."""
    numbered = _LAYER.search(name)
    return numbered is not None and int(numbered[1]) >= layers and not _OTHER_INPUT.search(name)


class _Matmul:
    """The weights that one token is multiplied with, of which experts await their share."""

    def __init__(self) -> None:
        self.dense, self.table, self.has_head = 0, 0, False
        self.weights: defaultdict[str, int] = defaultdict(int)
        self.numbers: defaultdict[str, set[int]] = defaultdict(set)

    def add(self, tensor: StoredTensor, role: _Role, weights: int) -> None:
        self.has_head |= role.head
        if len(tensor.shape) < 2 or role.apart:
            return
        if role.table:
            self.table = max(self.table, weights)
        elif role.expert and (expert := _EXPERT.match(tensor.name)):
            self.weights[expert[1]] += weights
            if expert[2] is not None:
                self.numbers[expert[1]].add(int(expert[2]))
            elif len(tensor.shape) > 2:
                self.numbers[expert[1]].update(range(min(tensor.shape[0], _MOST_COUNTERS)))
        else:
            self.dense += weights

    def total(self, experts_used: int | None) -> int | None:
        """All of them; None where the experts of a token, or how many there are, are unknown."""
        routed = 0
        for place, weights in self.weights.items():
            if experts_used is None or not self.numbers[place]:
                return None
            routed += weights * experts_used // len(self.numbers[place])
        return self.dense + routed + (0 if self.has_head else self.table)
