"""Step times at rates, against the sum of the parts written out row by row."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.core.step import Row, StepPlan
from kvhouse.costs import FittedSteps, StepRates
from kvhouse.costs.fitted import between
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec.layers import FullAttention, SlidingAttention
from kvhouse.spec.model import ModelSpec

KV_HEADS, HEADS, DIM, LAYERS, WINDOW = 2, 4, 8, 3, 5
#: Keys and values in float32.
TOKEN_BYTES = LAYERS * KV_HEADS * 2 * DIM * 4


def spec_of(layer):
    return ModelSpec("toy", "Toy", (layer,) * LAYERS, 16, 50, 512, 4000, 3000, "float32")


FULL = spec_of(FullAttention(HEADS, KV_HEADS, DIM, DIM))
SLIDING = spec_of(SlidingAttention(HEADS, KV_HEADS, DIM, DIM, window=WINDOW))

seconds = st.floats(0, 1e-3)
rates = st.builds(
    lambda knots, times, others: StepRates(knots, tuple(times[: len(knots)]), *others),
    st.sets(st.integers(1, 300), min_size=1, max_size=4).map(lambda some: tuple(sorted(some))),
    st.lists(st.floats(0, 0.1), min_size=4, max_size=4).map(sorted),
    st.tuples(*[seconds] * 3, *[st.floats(0, 1e-9)] * 3),
)
rows = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 60), st.booleans()), min_size=1, max_size=8
)


def fitted(spec, rates):
    return FittedSteps(spec, KVLayout.of(spec, "fp32", 4), rates)


def naive(rates, parts, window=None):
    """The sum, row by row and token by token, in exact fractions."""
    tokens = sum(count for _, count, _ in parts)
    times = dict(zip(rates.knots, map(Fraction, rates.knot_seconds), strict=True))
    below = [knot for knot in times if knot <= tokens] or [min(times)]
    above = [knot for knot in times if knot > max(below)]
    if not above:  # the last line goes on
        below, above = sorted(times)[-2:-1] or [max(times)], [max(times)]
    low, high = max(below), min(above)
    slope = (times[high] - times[low]) / (high - low) if high > low else 0
    total = max(times[low] + slope * (tokens - low), 0)
    total += Fraction(rates.sampling) * any(sampled for *_, sampled in parts)
    for first, count, sampled in parts:
        total += Fraction(rates.row) + Fraction(rates.sample) * sampled
        read = first if window is None else min(first, window - 1)
        if count == 1:
            total += Fraction(rates.decode_byte) * read * TOKEN_BYTES
            continue
        total += Fraction(rates.chunk_byte) * read * TOKEN_BYTES
        for position in range(first, first + count):
            met = position + 1 if window is None else min(position + 1, window)
            flops = met * LAYERS * HEADS * 4 * DIM
            total += Fraction(rates.chunk_flop) * flops
    return float(total)


@given(rates, rows)
def test_a_step_is_the_sum_of_its_parts(rates, parts):
    assert fitted(FULL, rates).of(parts).seconds == pytest.approx(naive(rates, parts), abs=1e-11)


@given(rates, rows)
def test_what_a_window_hides_is_not_read(rates, parts):
    times = fitted(SLIDING, rates)
    assert times.of(parts).seconds == pytest.approx(naive(rates, parts, WINDOW), abs=1e-11)


@given(rates, rows)
def test_a_plan_counts_as_its_rows(rates, parts):
    made = [Row(n, *part, ((),)) for n, part in enumerate(parts)]
    plan = StepPlan(0, tuple(made), (), (), ())
    times = fitted(FULL, rates)
    assert times.step(plan) == times.of(parts)


@given(
    rates,
    st.lists(st.integers(1, 200), max_size=6),
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 60), st.just(False)), max_size=2),
)
def test_a_line_gives_each_step_to_the_last_bit(rates, contexts, prompts):
    if not contexts and not prompts:
        contexts = [1]
    times = fitted(FULL, rates)
    line = times.line(len(contexts), sum(contexts), prompts, going_on=True)
    taken, _ = line.spend(0.0, math.inf, 40)
    for step, spent in enumerate(taken):
        decoding = [(context + step, 1, True) for context in contexts]
        going = [(first + step * count, count, False) for first, count, _ in prompts]
        assert spent == times.of([*decoding, *going]).seconds


def test_nothing_takes_no_time():
    rates = StepRates((1,), (0.5,), *[0.25] * 6)
    assert fitted(FULL, rates).of([]).seconds == 0.0


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (1, (0, -1, 2)),
        (2, (0, 0, 2)),
        (3, (0, 1, 2)),
        (4, (1, 0, 6)),
        (10, (1, 6, 6)),
        (16, (1, 12, 6)),
    ],
)
def test_between_knots(tokens, expected):
    assert between((2, 4, 10), tokens) == expected


@pytest.mark.parametrize(("knots", "times"), [((), ()), ((2, 1), (0.0, 0.0)), ((1,), (0.0, 1.0))])
def test_knots_that_cannot_be(knots, times):
    with pytest.raises(KvhouseError, match="must ascend"):
        StepRates(knots, times, *[0.0] * 6)
