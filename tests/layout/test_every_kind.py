"""Groups and blocks of every mix of layers against counting and trying."""

from collections import Counter
from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.formats import FORMATS, get_format
from kvhouse.layout import KVLayout
from kvhouse.layout.grouping import MOST_GROUPS
from kvhouse.spec import load
from kvhouse.spec.layers import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    SharedKV,
    SlidingAttention,
    State,
    Tensor,
)

layouts = {
    "kv_format": st.sampled_from(list(FORMATS)),
    "block_size": st.integers(1, 9),
    "other_tokens": st.integers(0, 20),
}


def parts_of(spec):
    return [part for layer in spec.layers for part in layer.parts]


@settings(deadline=None)
@given(data=st.data(), **layouts)
def test_each_part_that_keeps_tokens_lies_in_one_group(
    any_spec, naive, data, kv_format, block_size, other_tokens
):
    spec = data.draw(any_spec)
    layout = KVLayout.of(spec, kv_format, block_size, other_tokens=other_tokens)
    keeping = [
        part
        for part in parts_of(spec)
        if naive.entry_bytes(part, kv_format) and (other_tokens or not part.across)
    ]
    assert Counter(layer for group in layout.groups for layer in group.layers) == Counter(keeping)
    for group in layout.groups:
        for layer in group.layers:
            for query in range(45):
                assert naive.sees(layer, query) == naive.sees(group.layers[0], query)
        ratio = naive.ratio_of(group.layers[0])
        assert group.block_size == lcm(block_size, ratio)
        entries = group.block_size // ratio
        filled = sum(entries * naive.entry_bytes(layer, kv_format) for layer in group.layers)
        assert group.layer_bytes == filled <= layout.block_bytes
    assert layout.slot_bytes == sum(
        naive.slot_bytes(part, kv_format, layout.dtype) for part in parts_of(spec)
    )


@settings(deadline=None)
@given(data=st.data(), tokens=st.integers(1, 90), in_flight=st.integers(1, 90), **layouts)
def test_what_is_held_is_what_is_kept_and_padding_and_rounding(
    any_spec, data, tokens, in_flight, kv_format, block_size, other_tokens
):
    spec = data.draw(any_spec)
    layout = KVLayout.of(spec, kv_format, block_size, other_tokens=other_tokens)
    kept = sum(group.kept_bytes(tokens) for group in layout.groups) + layout.slot_bytes
    logical = spec.kv_bytes(tokens, get_format(kv_format), encoder_tokens=other_tokens)
    # A place for tokens that wait to be compressed, or for buckets, is there from the start.
    assert kept >= logical
    if tokens > 8:
        assert kept == logical
    held = layout.held_bytes(tokens, in_flight)
    padding = layout.padding_bytes(tokens, in_flight)
    filled = sum(group.blocks_for(tokens, in_flight) * group.layer_bytes for group in layout.groups)
    assert held == padding + filled + layout.slot_bytes
    assert held - padding >= kept


def cuts(sizes, block_bytes):
    """Groups that blocks of this size make of layers in order, by filling one after the other."""
    groups = [[]]
    for size in sizes:
        if sum(groups[-1]) + size > block_bytes:
            groups.append([])
        groups[-1].append(size)
    return groups


@settings(deadline=None, max_examples=300)
@given(
    windows=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), min_size=2, max_size=3),
    data=st.data(),
)
def test_no_other_block_size_pads_the_worst_kind_less(naive, windows, data):
    # Each kind has layers of two sizes, mixed; a layer takes 16 bytes a head and token.
    kinds = [
        [
            SlidingAttention(4, data.draw(st.sampled_from([1, heads])), 4, 4, window)
            for _ in range(count)
        ]
        for window, (heads, count) in enumerate(windows, start=1)
    ]
    layout = KVLayout.of(naive.make_spec([layer for kind in kinds for layer in kind]), "bf16", 1)
    sizes = [[16 * layer.kv_heads for layer in kind] for kind in kinds]

    def worst(block_bytes):
        made = [cuts(kind, block_bytes) for kind in sizes]
        shares = [len(c) * block_bytes / sum(k) for c, k in zip(made, sizes, strict=True)]
        return max(shares), sum(map(len, made))

    largest, most = max(map(max, sizes)), max(map(sum, sizes))
    tried = {size: worst(size) for size in range(largest, most + 1, 16)}
    allowed = {size: share for size, (share, groups) in tried.items() if groups <= MOST_GROUPS}
    assert allowed[layout.block_bytes] == min(allowed.values())
    assert len(layout.groups) == tried[layout.block_bytes][1]
    assert layout.block_bytes == max(s for s in allowed if allowed[s] == min(allowed.values()))


def brute_blocks(naive, layer, block_size, tokens, in_flight):
    """The most blocks that any step of any chunking needs at once."""
    most = 0
    for first in range(tokens):
        needed = set()
        for query in range(first, min(first + in_flight, tokens)):
            needed |= naive.sees(layer, query)
            most = max(most, len({position // block_size for position in needed}))
    return most


moving = st.one_of(
    st.builds(SlidingAttention, *map(st.just, (2, 1, 8, 8)), st.integers(1, 10)),
    st.builds(ChunkedAttention, *map(st.just, (2, 1, 8, 8)), st.integers(1, 10)),
    st.builds(LatentAttention, st.just(2), st.just(8), st.just(8), st.integers(1, 10)),
    st.just(FullAttention(2, 1, 8, 8)),
)


@settings(deadline=None)
@given(moving, st.integers(1, 6), st.integers(1, 30), st.integers(1, 8))
def test_no_step_of_any_chunking_needs_more_blocks(naive, layer, block_size, tokens, in_flight):
    layout = KVLayout.of(naive.make_spec([layer]), "bf16", block_size)
    most = brute_blocks(naive, layer, block_size, tokens, in_flight)
    assert most <= layout.blocks_for(tokens, in_flight) <= -(-tokens // block_size)


@settings(deadline=None, max_examples=60)
@given(moving, st.integers(1, 6), st.integers(1, 8))
def test_some_step_of_a_long_request_needs_all_of_them(naive, layer, block_size, in_flight):
    # Long enough for a window to begin anywhere in a block, and for every chunk's alignment.
    layout = KVLayout.of(naive.make_spec([layer]), "bf16", block_size)
    tokens = 80
    most = brute_blocks(naive, layer, block_size, tokens, in_flight)
    assert layout.blocks_for(tokens, in_flight) == most


@settings(deadline=None)
@given(data=st.data(), tokens=st.integers(1, 99), in_flight=st.integers(1, 99), **layouts)
def test_longer_requests_and_larger_steps_never_need_less(
    any_spec, data, tokens, in_flight, kv_format, block_size, other_tokens
):
    layout = KVLayout.of(data.draw(any_spec), kv_format, block_size, other_tokens=other_tokens)
    needed = layout.blocks_for(tokens, in_flight)
    assert layout.blocks_for(tokens + 1, in_flight) >= needed
    assert layout.blocks_for(tokens, in_flight + 1) >= needed
    assert layout.blocks_for(tokens) >= needed


@settings(deadline=None)
@given(data=st.data(), budget=st.integers(-10, 200_000), tokens=st.integers(1, 90), **layouts)
def test_a_pool_is_all_that_the_budget_holds(
    any_spec, data, budget, tokens, kv_format, block_size, other_tokens
):
    layout = KVLayout.of(data.draw(any_spec), kv_format, block_size, other_tokens=other_tokens)
    in_flight = data.draw(st.integers(1, 90))
    size = layout.pool_in(budget, tokens, in_flight)
    left = budget - layout.pool_bytes(size)
    assert min(size.blocks, size.slots) >= 0
    assert left >= 0 or (budget < 0 and not layout.pool_bytes(size))
    assert left < (layout.block_bytes or layout.slot_bytes)
    if not layout.slot_bytes:
        assert size.slots == 0
        return
    one = layout.held_bytes(tokens, in_flight)
    whole = sum(1 for n in range(1, 1 + max(0, budget) // layout.slot_bytes) if n * one <= budget)
    shorter = budget >= layout.slot_bytes + layout.block_bytes
    assert size.slots == (whole or int(shorter))
    assert size.blocks >= whole * layout.blocks_for(tokens, in_flight)


def test_gemma_3_27b_written_out():
    # 62 layers of 16 KV heads of 128: ten keep every token, 52 a window of 1,024. Blocks of five
    # layers cut them into 2 and 11 groups, and only three layers' places in 65 stay empty.
    layout = KVLayout.of(load("gemma-3-27b"), "bf16", 16)
    assert layout.block_bytes == 5 * 16 * (2 * 16 * 128 * 2)
    assert [len(group.layers) for group in layout.groups if group.reach.kind == "all"] == [5, 5]
    windows = [len(group.layers) for group in layout.groups if group.reach.kind == "window"]
    assert windows == [5] * 10 + [2]
    # At 4,096 tokens in steps of 2,048: 256 blocks a full group; a window's group 1,023 + 2,048
    # tokens, which touch at most 193 blocks.
    assert layout.blocks_for(4096, 2048) == 2 * 256 + 11 * 193


def test_what_cannot_be_laid_out(naive):
    full = naive.make_spec([FullAttention(4, 2, 8, 8)])
    with pytest.raises(KvhouseError, match="block size 0: a block holds 1 to 1,048,576 tokens"):
        KVLayout.of(full, block_size=0)
    with pytest.raises(KvhouseError, match="other_tokens -1: must be at least 0"):
        KVLayout.of(full, other_tokens=-1)
    with pytest.raises(KvhouseError, match="unknown dtype 'int3': choose one of float32"):
        KVLayout.of(full, dtype="int3")
    for layers in ([SharedKV()], [CrossAttention(4, 2, 8, 8)]):
        with pytest.raises(UnsupportedModel, match="m: keeps nothing of a request"):
            KVLayout.of(naive.make_spec(layers))


def test_a_state_alone_needs_slots_only(naive):
    layout = KVLayout.of(naive.make_spec([State((Tensor(20),))]))
    assert (layout.groups, layout.block_bytes, layout.slot_bytes) == ((), 0, 40)
    assert layout.pool_in(399, 4096) == layout.pool_in(399, 1)
    assert layout.pool_in(399, 1).slots == 9
    with pytest.raises(KvhouseError, match="no place for the state of one request"):
        layout.require(layout.pool_in(39, 1))
