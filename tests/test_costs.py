"""Costs against sums written out token by token and head by head."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse import devices, spec
from kvhouse.core.step import Row, StepPlan
from kvhouse.costs import Line, Roofline
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec.model import FullAttention, ModelSpec

DEVICE = Device("d", "d", 2**30, 1e9, {"bfloat16": 4e12, "float32": 1e12}, "datasheet", "test")
QUERY_HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 4, 2, 8, 6
HIDDEN, VOCAB, LAYERS = 16, 50, 3
BODY = 1000
SPEC = ModelSpec(
    name="toy",
    architecture="Toy",
    layers=(FullAttention(QUERY_HEADS, KV_HEADS, KEY_DIM, VALUE_DIM),) * LAYERS,
    hidden_size=HIDDEN,
    vocab_size=VOCAB,
    max_length=512,
    parameters=BODY + 2 * VOCAB * HIDDEN + 100,
    matmul_parameters=BODY + VOCAB * HIDDEN,
    dtype="bfloat16",
)
ROOFLINE = Roofline(SPEC, KVLayout.of(SPEC, "fp32", 4), DEVICE)
KV_TOKEN_BYTES = LAYERS * KV_HEADS * (KEY_DIM + VALUE_DIM) * 4

rows = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 60), st.booleans()), min_size=1, max_size=8
)


def plan_of(parts):
    table = ((),)
    made = tuple(
        Row(request, first, count, samples, table)
        for request, (first, count, samples) in enumerate(parts)
    )
    return StepPlan(0, made, (), (), ())


def naive(parts):
    """Bytes and FLOPs by walking through every token, layer, head and attended position."""
    any_sample = any(samples for _, _, samples in parts)
    weights = (BODY + (VOCAB * HIDDEN if any_sample else 0)) * 2
    read = written = matmul = attention = 0
    for first, count, samples in parts:
        read += first * KV_TOKEN_BYTES
        for position in range(first, first + count):
            written += KV_TOKEN_BYTES
            matmul += 2 * BODY
            for _ in range(LAYERS * QUERY_HEADS):
                attended = position + 1
                attention += 2 * KEY_DIM * attended + 2 * VALUE_DIM * attended
        matmul += 2 * VOCAB * HIDDEN if samples else 0
    return weights, read, written, matmul, attention


@given(rows)
def test_a_step_is_what_counting_gives(parts):
    cost = ROOFLINE.step(plan_of(parts))
    weights, read, written, matmul, attention = naive(parts)
    assert cost.weight_bytes == weights
    assert cost.kv_read_bytes == read
    assert cost.kv_written_bytes == written
    assert cost.matmul_flops == matmul
    assert cost.attention_flops == attention
    assert cost.memory_seconds == pytest.approx((weights + read + written) / 1e9)
    assert cost.compute_seconds == pytest.approx((matmul + attention) / 4e12)
    assert cost.seconds >= cost.bytes / DEVICE.bandwidth
    assert cost.seconds >= cost.flops / 4e12
    assert cost.seconds in (cost.memory_seconds, cost.compute_seconds)


@given(rows, st.tuples(st.integers(0, 200), st.integers(1, 60), st.booleans()))
def test_another_row_never_makes_a_step_cheaper(parts, extra):
    fewer, more = ROOFLINE.step(plan_of(parts)), ROOFLINE.step(plan_of([*parts, extra]))
    assert more.seconds >= fewer.seconds
    assert more.bytes > fewer.bytes
    assert more.flops > fewer.flops


@given(st.integers(1, 50), st.integers(1, 500))
def test_decode_floor_is_the_step_of_identical_rows(batch, context):
    plan = plan_of([(context, 1, True)] * batch)
    assert ROOFLINE.decode_floor(batch, context) == ROOFLINE.step(plan)


@given(st.integers(1, 500))
def test_prefill_is_the_step_of_one_whole_prompt(tokens):
    assert ROOFLINE.prefill(tokens) == ROOFLINE.step(plan_of([(0, tokens, True)]))


@given(st.integers(1, 300), st.integers(1, 300))
def test_chunks_do_the_arithmetic_of_the_whole(first, second):
    whole = ROOFLINE.prefill(first + second)
    chunks = [ROOFLINE.step(plan_of([p])) for p in ((0, first, False), (first, second, True))]
    assert sum(chunk.flops for chunk in chunks) == whole.flops
    assert sum(chunk.kv_written_bytes for chunk in chunks) == whole.kv_written_bytes
    assert sum(chunk.weight_bytes for chunk in chunks) > whole.weight_bytes


def test_a_plan_without_rows_costs_nothing():
    cost = ROOFLINE.step(plan_of([]))
    assert (cost.bytes, cost.flops, cost.seconds) == (0, 0, 0.0)


def test_decode_is_bound_by_bandwidth_and_a_long_prefill_by_compute():
    slow = Device("slow", "slow", 2**30, 1e9, {"bfloat16": 1e10}, "datasheet", "test")
    roofline = Roofline(SPEC, KVLayout.of(SPEC), slow)
    assert roofline.decode_floor(1, 100).bound == "bandwidth"
    assert roofline.prefill(500).bound == "compute"


def test_the_weight_dtype_sets_bytes_and_rate():
    wide = Roofline(SPEC, KVLayout.of(SPEC), DEVICE, "float32")
    assert wide.decode_floor(1, 1).weight_bytes == 2 * ROOFLINE.decode_floor(1, 1).weight_bytes
    assert (wide.flop_rate, wide.compute_dtype) == (1e12, "float32")


def test_a_rate_of_another_dtype_is_named():
    roofline = Roofline(SPEC, KVLayout.of(SPEC), DEVICE, "float16")
    assert (roofline.flop_rate, roofline.compute_dtype) == (1e12, "float32")


def test_unknown_weight_dtype():
    with pytest.raises(KvhouseError, match="unknown weight dtype 'int3'"):
        Roofline(SPEC, KVLayout.of(SPEC), DEVICE, "int3")


@pytest.mark.parametrize(
    ("weights", "factors"),
    [
        ("nf4", "float16"),
        ("fp8", "float8"),
        ("fp8-block", "float8"),
        ("nvfp4", "float8"),  # without a figure for float4, the fastest wider one
        ("float16", "float16"),
        ("bfloat16", "float32"),
    ],
)
def test_narrow_weights_are_multiplied_in_the_fastest_type_that_holds_them(weights, factors):
    rates = {"float32": 1e13, "float16": 1e14, "float8": 2e14}
    device = Device("d", "", 2**35, 1e12, rates, "datasheet", "")
    model = replace(SPEC, dtype="float16")
    roofline = Roofline(model, KVLayout.of(model), device, weights)
    assert (roofline.flop_rate, roofline.compute_dtype) == (rates[factors], factors)


lines = st.tuples(
    st.integers(0, 2**45), st.integers(0, 2**36), st.integers(0, 2**50), st.integers(0, 2**40)
)


@given(lines, st.floats(0, 1e5), st.floats(0, 30), st.integers(1, 400))
def test_a_line_is_spent_as_a_clock_that_goes_step_by_step(line, now, span, most):
    until, expected, clock = now + span, [], now
    for step in range(most):
        moved, flops = line[0] + step * line[1], line[2] + step * line[3]
        expected.append(max(moved / 2.039e12, flops / 3.12e14))
        clock += expected[-1]
        if clock >= until:
            break
    assert Line(*line, 2.039e12, 3.12e14).spend(now, until, most) == (expected, clock)


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=9),
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 90), st.booleans()), max_size=3),
)
@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "mamba-2.8b"])
def test_a_line_costs_what_its_steps_cost(name, contexts, others):
    model = spec.load(name)
    roofline = Roofline(model, KVLayout.of(model), devices.get("a100-80g"))
    assert roofline.linear

    def seconds(rows):
        made = tuple(Row(i, first, count, samples, ()) for i, (first, count, samples) in rows)
        return roofline.step(StepPlan(0, made, (), (), ())).seconds

    first = [(context, 1, True) for context in contexts] + others
    line = roofline.line(len(contexts), sum(contexts), others)
    assert line.spend(0.0, 0.0, 1)[0] == [seconds(enumerate(first))]
    steps = roofline.line(len(contexts), sum(contexts)).spend(0.0, math.inf, 60)[0]
    assert steps == [
        seconds(enumerate((context + step, 1, True) for context in contexts)) for step in range(60)
    ]


@given(
    st.lists(st.integers(1, 500), max_size=5),
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 900)), min_size=1, max_size=2),
    st.integers(1, 150),
)
@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v2-lite", "mamba-2.8b"])
def test_a_line_costs_what_prompts_cost_that_go_on(name, contexts, chunks, most):
    model = spec.load(name)
    roofline = Roofline(model, KVLayout.of(model), devices.get("a100-80g"))
    rows = [(first, count, False) for first, count in chunks]
    line = roofline.line(len(contexts), sum(contexts), rows, going_on=True)
    expected = []
    for step in range(most):
        made = [(context + step, 1, True) for context in contexts]
        made += [(first + step * count, count, False) for first, count in chunks]
        plan = tuple(Row(i, *row, ()) for i, row in enumerate(made))
        expected.append(roofline.step(StepPlan(0, plan, (), (), ())).seconds)
    assert line.spend(0.0, math.inf, most)[0] == expected


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=9),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 2000), st.booleans()), max_size=3),
)
@pytest.mark.parametrize("name", ["gemma-3-27b", "gpt-oss-20b"])
def test_a_line_costs_what_windows_cost(name, contexts, others):
    """As long as no request fills a window, which ends a stretch."""
    model = spec.load(name)
    roofline = Roofline(model, KVLayout.of(model), devices.get("h100-80g"))
    (window,) = {part.reach.tokens for layer in model.layers for part in layer.parts} - {0}
    read = [min(context, window - 1) for context in contexts]
    growing = [context for context in contexts if context < window - 1]
    seen = [(sum(read), len(growing))]
    steps = min((window - context for context in growing), default=40)

    def seconds(rows):
        made = tuple(Row(i, *row, ()) for i, row in enumerate(rows))
        return roofline.step(StepPlan(0, made, (), (), ())).seconds

    first = [(context, 1, True) for context in contexts] + others
    line = roofline.line(len(contexts), sum(contexts), others, seen=seen)
    assert line.spend(0.0, 0.0, 1)[0] == [seconds(first)]
    line = roofline.line(len(contexts), sum(contexts), seen=seen)
    assert line.spend(0.0, math.inf, steps)[0] == [
        seconds([(context + step, 1, True) for context in contexts]) for step in range(steps)
    ]


@pytest.mark.parametrize("name", ["llama-4-scout", "deepseek-v3.2", "deepseek-v4-flash"])
def test_steps_that_do_not_grow_evenly_are_no_line(name):
    model = spec.load(name)
    assert not Roofline(model, KVLayout.of(model), devices.get("a100-80g")).linear
