"""Costs of every kind of layer against walking through tokens, layers and attended positions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.step import Row, StepPlan
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.formats import FORMATS
from kvhouse.layout import KVLayout
from kvhouse.spec.layers import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    SlidingAttention,
    State,
    Tensor,
)
from kvhouse.spec.rare_layers import SharedVector

DEVICE = Device("d", "d", 2**30, 1e9, {"bfloat16": 4e12, "float32": 1e12}, "datasheet", "test")


def pair_flops(part):
    """FLOPs of one query token and one position: two for each element of q·k and of p·v."""
    if isinstance(part, FullAttention):
        return part.query_heads * (2 * part.key_dim + 2 * part.value_dim)
    if isinstance(part, LatentAttention):
        # Absorbed: q·k over latent and rotary part, p·v over the latent.
        return part.query_heads * (2 * (part.rank + part.rope_dim) + 2 * part.rank)
    if isinstance(part, SharedVector):
        return part.query_heads * (2 * part.dim + 2 * part.dim)
    return 0


def walk(spec, layout, rows, naive):
    """Bytes read, bytes written and FLOPs of attention."""
    read = written = flops = 0
    for first, count in rows:
        for part in (part for layer in spec.layers for part in layer.parts):
            one = naive.entry_bytes(part, layout.format.name)
            state = naive.state_bytes(part, layout.dtype)
            written += state
            read += state if first else 0
            for query in range(first, first + count):
                flops += len(naive.sees(part, query, layout.other_tokens)) * pair_flops(part)
            if part.across:
                moved = layout.other_tokens * one
                read, written = (read + moved, written) if first else (read, written + moved)
                continue
            seen = set().union(*(naive.sees(part, q) for q in range(first, first + count)))
            read += naive.entries(part, {p for p in seen if p < first}) * one
            wanted = naive.sees(part, first + count)
            written += naive.entries(part, {p for p in wanted if first <= p < first + count}) * one
    return read, written, flops


def plan_of(rows):
    made = tuple(
        Row(request, first, count, False, ()) for request, (first, count) in enumerate(rows)
    )
    return StepPlan(0, made, (), (), ())


rows_of = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 50)), min_size=1, max_size=4)


@settings(deadline=None)
@given(data=st.data(), rows=rows_of)
def test_a_step_is_what_walking_gives(any_spec, naive, data, rows):
    spec = data.draw(any_spec)
    layout = KVLayout.of(
        spec,
        data.draw(st.sampled_from(list(FORMATS))),
        data.draw(st.integers(1, 9)),
        other_tokens=data.draw(st.integers(0, 20)),
    )
    cost = Roofline(spec, layout, DEVICE).step(plan_of(rows))
    moved = (cost.kv_read_bytes, cost.kv_written_bytes, cost.attention_flops)
    assert moved == walk(spec, layout, rows, naive)


@settings(deadline=None)
@given(data=st.data(), batch=st.integers(1, 9), context=st.integers(0, 90))
def test_the_decode_floor_is_that_of_identical_rows(any_spec, data, batch, context):
    spec = data.draw(any_spec)
    roofline = Roofline(spec, KVLayout.of(spec, "fp8", 4, other_tokens=5), DEVICE)
    rows = plan_of([(context, 1)] * batch)
    floor = roofline.decode_floor(batch, context)
    assert floor.kv_read_bytes == roofline.step(rows).kv_read_bytes
    assert floor.kv_written_bytes == roofline.step(rows).kv_written_bytes
    assert floor.attention_flops == roofline.step(rows).attention_flops


@settings(deadline=None)
@given(data=st.data(), counts=st.lists(st.integers(1, 40), min_size=2, max_size=4))
def test_chunks_do_the_arithmetic_of_the_whole_and_never_move_less(any_spec, data, counts):
    spec = data.draw(any_spec)
    roofline = Roofline(spec, KVLayout.of(spec, "int4", 4, other_tokens=5), DEVICE)
    firsts = [sum(counts[:at]) for at in range(len(counts))]
    chunks = [roofline.step(plan_of([row])) for row in zip(firsts, counts, strict=True)]
    whole = roofline.step(plan_of([(0, sum(counts))]))
    assert sum(chunk.attention_flops for chunk in chunks) == whole.attention_flops
    assert sum(chunk.kv_written_bytes for chunk in chunks) >= whole.kv_written_bytes
    assert sum(chunk.kv_read_bytes for chunk in chunks) >= whole.kv_read_bytes == 0


# One layer each, 2 query heads, 1 KV head, keys and values of 8, in bf16: 32 bytes a token and
# 64 FLOPs a pair. The row is 5 tokens from position 10 on.
@pytest.mark.parametrize(
    ("layer", "read", "written", "pairs"),
    [
        (FullAttention(2, 1, 8, 8), 10, 5, 11 + 12 + 13 + 14 + 15),
        # Position 10 sees 5 to 10; the next token, 15, will see 10 to 15.
        (SlidingAttention(2, 1, 8, 8, 6), 5, 5, 5 * 6),
        # A window of 3: position 10 sees 8 and 9; token 15 will see 13 and 14.
        (SlidingAttention(2, 1, 8, 8, 3), 2, 2, 5 * 3),
        # Chunks of 6: 10 and 11 see back to 6, 12 begins anew; 15 will see 12 to 14.
        (ChunkedAttention(2, 1, 8, 8, 6), 4, 3, 5 + 6 + 1 + 2 + 3),
        # 7 tokens of an image, written when the request began.
        (CrossAttention(2, 1, 8, 8), 7, 0, 5 * 7),
    ],
)
def test_one_layer_by_hand(naive, layer, read, written, pairs):
    spec = naive.make_spec([layer])
    cost = Roofline(spec, KVLayout.of(spec, "bf16", 4, other_tokens=7), DEVICE).step(
        plan_of([(10, 5)])
    )
    assert cost.kv_read_bytes == read * 32
    assert cost.kv_written_bytes == written * 32
    assert cost.attention_flops == pairs * 64


@pytest.mark.parametrize("first", [0, 1, 4])
def test_a_state_and_another_input_are_read_once_they_are_there(naive, first):
    spec = naive.make_spec([State((Tensor(20), Tensor(5, "float32"))), CrossAttention(2, 1, 8, 8)])
    roofline = Roofline(spec, KVLayout.of(spec, other_tokens=7), DEVICE)
    cost = roofline.step(plan_of([(first, 3)]))
    # A state of 60 bytes, written in every step; 7 tokens of 32 bytes, written in the first.
    moved = (cost.kv_read_bytes, cost.kv_written_bytes)
    assert moved == ((60 + 7 * 32, 60) if first else (0, 60 + 7 * 32))
