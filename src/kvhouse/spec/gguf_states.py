"""States of fixed size from a GGUF file's metadata: SSMs, linear attention, convolutions, RWKV."""

from __future__ import annotations

from kvhouse.spec.gguf_metadata import Metadata
from kvhouse.spec.layers import State
from kvhouse.spec.tensors import Convolution, Tensor

#: The recurrent state is kept in float32 whatever the model computes in.
_WIDE = "float32"


def read_state(data: Metadata) -> State:
    """What a recurrent layer keeps of a request whatever its length.

    Raises:
        SpecError: A key is missing or impossible.
    """
    if "shifts" in data.entry:
        return _rwkv(data)
    if data.maybe("shortconv.l_cache"):
        kernel = data.size("shortconv.l_cache")
        width = data.size("embedding_length")
        return State((Convolution(width, kernel, units=width),))
    if data.maybe("kda.head_dim"):
        return _delta_attention(data)
    if data.entry.get("lightning"):
        return _lightning(data)
    return _ssm(data)


def _ssm(data: Metadata) -> State:
    """Mamba 1 (no groups), Mamba 2 and gated delta nets: one form for all of them.

    In a delta net the groups are the key heads and the state's size is that of a key, so the
    convolution runs over queries, keys and values and the state is one matrix per value head.
    """
    inner, size = data.size("ssm.inner_size"), data.size("ssm.state_size")
    channels = inner + 2 * (data.maybe("ssm.group_count") or 0) * size
    return State((Convolution(channels, data.size("ssm.conv_kernel")), Tensor(inner * size, _WIDE)))


def _delta_attention(data: Metadata) -> State:
    """Kimi delta attention: convolutions over queries, keys and values, and a square per head."""
    heads = (data.each("attention.head_count", 1) or [0])[0]
    if not heads:
        raise data.error(data.key("attention.head_count"), "is missing")
    inner = heads * data.size("kda.head_dim")
    kernel = data.size("ssm.conv_kernel")
    square = inner * data.size("kda.head_dim")
    state = Tensor(square, _WIDE, heads, _WIDE)
    return State((Convolution(3 * inner, kernel, units=heads), state))


def _lightning(data: Metadata) -> State:
    """Lightning attention: a square per head, in the model's dtype."""
    heads = data.size("attention.head_count")
    dim = data.maybe("attention.key_length") or data.size("embedding_length") // heads
    return State((Tensor(heads * dim**2, units=heads),))


def _rwkv(data: Metadata) -> State:
    """RWKV 6 and 7 (arXiv 2404.05892, 2503.14456): last tokens, and a matrix per head."""
    hidden = data.size("embedding_length")
    shifts = data.maybe("token_shift_count") or int(data.entry["shifts"])
    return State((Tensor(shifts * hidden), Tensor(hidden * data.size("wkv.head_size"), _WIDE)))
