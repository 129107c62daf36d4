"""Specs of every kind of layer, and a naive account of what each kind keeps.

The account shares no arithmetic with the package: it works on sets of positions and on bytes
written out kind by kind, so that rooms can be tested against it.
"""

import os
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kvhouse.spec.layers import (
    ChunkedAttention,
    Combined,
    CrossAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    SharedKV,
    SlidingAttention,
    State,
    WithoutKV,
)
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.rare_layers import (
    CompressedEntries,
    HashBuckets,
    HiddenStates,
    PendingTokens,
    PreviousGroup,
    SharedVector,
)
from kvhouse.spec.tensors import Convolution, Tensor

# Hugging Face libraries read it when they are imported, which no test has done yet: one that
# reaches for the network fails.
os.environ["HF_HUB_OFFLINE"] = "1"

# A test does not look at the clock: a busy machine draws its inputs slowly, and that is no failure.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}

#: Kinds of layers that let no token go, whatever else they do.
KEEP_ALL = (FullAttention, Indexer, HashBuckets, CompressedEntries, LatentAttention, HiddenStates)


def window_of(layer):
    """The window of a layer, None where it has none."""
    if isinstance(layer, HiddenStates):
        return layer.memory
    return getattr(layer, "window", None)


def sees(layer, query, other_tokens=0):
    """The positions whose entries the token at ``query`` looks up in blocks."""
    if isinstance(layer, CrossAttention):
        return set(range(other_tokens))
    if isinstance(layer, ChunkedAttention):
        return {p for p in range(query + 1) if p // layer.chunk == query // layer.chunk}
    if (window := window_of(layer)) is not None:
        return {p for p in range(query + 1) if query - p < window}
    return set(range(query + 1)) if isinstance(layer, KEEP_ALL) else set()


def ratio_of(layer):
    """Tokens to an entry."""
    return layer.ratio if isinstance(layer, CompressedEntries) else 1


def entries(layer, positions):
    """Entries of consecutive positions that are whole."""
    ratio = ratio_of(layer)
    return sum(1 for p in positions if (p + 1) % ratio == 0)


def vector(kv_format, elements):
    """Bytes of a vector; the quantised formats have a scale of two bytes."""
    plain = {"bf16": 2, "fp16": 2, "fp32": 4}
    if kv_format in plain:
        return plain[kv_format] * elements
    if kv_format in ("fp8", "int8"):
        return elements + 2
    return sum(min(32, elements - at) for at in range(0, elements, 32)) // 2 + 2 * len(
        range(0, elements, 32)
    )


def entry_bytes(layer, kv_format):
    """Bytes of one entry in blocks."""
    if isinstance(layer, FullAttention):
        pair = vector(kv_format, layer.key_dim) + vector(kv_format, layer.value_dim)
        return layer.kv_heads * pair
    if isinstance(layer, LatentAttention):
        return vector(kv_format, layer.rank) + vector(kv_format, layer.rope_dim)
    if isinstance(layer, Indexer):
        width = WIDTHS[layer.dtype] * layer.keys if layer.dtype else vector(kv_format, layer.keys)
        return width + 8 * layer.positions
    if isinstance(layer, HashBuckets):
        return 8 * layer.hashes
    if isinstance(layer, HiddenStates):
        return vector(kv_format, layer.width)
    if isinstance(layer, (SharedVector, CompressedEntries)):
        return vector(kv_format, layer.dim)
    return 0


def slot_bytes(layer, kv_format, dtype):
    """Bytes that do not grow with the request."""
    if isinstance(layer, PendingTokens):
        return (layer.ratio - 1) * 2 * vector(kv_format, layer.dim)
    if isinstance(layer, PreviousGroup):
        return layer.ratio * (vector(kv_format, layer.dim) + 4 * layer.dim)
    return state_bytes(layer, dtype)


def state_bytes(layer, dtype):
    """Bytes of a state."""
    total = 0
    for tensor in layer.tensors if isinstance(layer, State) else ():
        count = (
            tensor.channels * (tensor.kernel - 1)
            if isinstance(tensor, Convolution)
            else tensor.elements
        )
        total += count * WIDTHS[tensor.dtype or dtype]
    return total


HEADS = {
    "query_heads": st.sampled_from([2, 4]),
    "kv_heads": st.sampled_from([1, 2]),
    "key_dim": st.sampled_from([8, 40]),
    "value_dim": st.sampled_from([8, 64]),
}
SPANS = st.integers(1, 40)

KINDS = st.one_of(
    st.builds(FullAttention, **HEADS),
    st.builds(SlidingAttention, **HEADS, window=SPANS),
    st.builds(ChunkedAttention, **HEADS, chunk=SPANS),
    st.builds(CrossAttention, **HEADS),
    st.builds(LatentAttention, st.just(4), st.just(32), st.just(8), st.none() | SPANS),
    st.builds(Indexer, st.just(16), st.sampled_from([None, "float32"]), st.integers(0, 2)),
    st.builds(State, st.sampled_from([(Tensor(48),), (Tensor(64, "float32"), Convolution(8, 4))])),
    st.builds(SharedVector, st.just(4), st.just(24), SPANS),
    st.builds(HiddenStates, st.just(32), st.none() | SPANS),
    st.builds(
        lambda dim, ratio, window: Combined(
            (
                SharedVector(4, dim, window),
                CompressedEntries(dim, ratio),
                PendingTokens(dim, ratio),
                PreviousGroup(dim, ratio),
            )
        ),
        st.just(16),
        st.integers(2, 6),
        SPANS,
    ),
    st.just(Combined((HiddenStates(32), HashBuckets(2, 8)))),
    st.just(SharedKV()),
    st.just(WithoutKV()),
)


def make_spec(layers, dtype="bfloat16"):
    return ModelSpec("m", "M", tuple(layers), 64, 100, 4096, 10_000, 9_000, dtype)


@st.composite
def specs(draw):
    """Models that mix up to three kinds of layers, each at least once, in any order."""
    kinds = draw(st.lists(KINDS, min_size=1, max_size=3))
    layers = draw(st.permutations([k for k in kinds for _ in range(draw(st.integers(1, 3)))]))
    # One layer that keeps every token of its own, so that no model keeps nothing at all.
    least = draw(st.sampled_from(["full", "window", "state"]))
    layers.append(
        {
            "full": FullAttention(4, 2, 8, 8),
            "window": SlidingAttention(4, 1, 8, 8, draw(SPANS)),
            "state": State((Tensor(20),)),
        }[least]
    )
    return make_spec(layers, draw(st.sampled_from(["bfloat16", "float32"])))


@pytest.fixture(scope="session")
def naive():
    """The account, by its functions' names."""
    return SimpleNamespace(
        sees=sees,
        entries=entries,
        entry_bytes=entry_bytes,
        slot_bytes=slot_bytes,
        state_bytes=state_bytes,
        ratio_of=ratio_of,
        window_of=window_of,
        vector=vector,
        make_spec=make_spec,
    )


@pytest.fixture(scope="session")
def any_spec():
    """The strategy of ``specs``."""
    return specs()
