"""Windows, samples, rates and lengths: what must hold whatever the trace."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.errors import TraceError
from kvhouse.replayer.trace_select import Selection, Tally
from kvhouse.replayer.traces import TraceRequest, TraceStream, read_trace


def taken(requests, **options) -> list[TraceRequest]:
    return list(Selection(**options).of(requests, Tally()))


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRequest]:
    # Quarters of seconds, so that differences and sums of times are exact.
    quarters = sorted(draw(st.lists(st.integers(0, 200), max_size=30)))
    lengths = st.integers(1, 4000)
    return [TraceRequest(q / 4, draw(lengths), draw(lengths)) for q in quarters]


@given(traces(), st.integers(1, 40))
def test_windows_side_by_side_hold_the_whole_trace_once(trace, quarters):
    width = quarters / 4
    pieces = []
    for number in range(math.ceil(51 / width)):
        window = taken(trace, start=number * width, duration=width)
        assert all(0 <= request.arrival < width for request in window)
        pieces += [(number * width + r.arrival, r.prompt_tokens, r.output_tokens) for r in window]
    assert pieces == [(r.arrival, r.prompt_tokens, r.output_tokens) for r in trace]


def test_a_window_reads_no_further_than_its_end():
    def endless():
        time = 0.0
        while True:
            yield TraceRequest(time, 1, 1)
            time += 0.5

    assert [r.arrival for r in taken(endless(), start=3.0, duration=1.5)] == [0.0, 0.5, 1.0]


@given(traces(), st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_rates_scale_every_gap_and_nothing_else(trace, factor):
    scaled = taken(trace, scale_rate=factor)
    assert [r.arrival * factor for r in scaled] == [r.arrival for r in trace]
    assert [(r.prompt_tokens, r.output_tokens) for r in scaled] == [
        (r.prompt_tokens, r.output_tokens) for r in trace
    ]
    assert taken(scaled, scale_rate=1 / factor) == trace


def test_the_window_is_that_of_the_trace_and_not_of_the_faster_one():
    trace = [TraceRequest(float(t), 1, 1) for t in range(10)]
    assert [r.arrival for r in taken(trace, start=4, duration=4, scale_rate=2)] == [0, 0.5, 1, 1.5]


@given(traces(), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_a_sample_is_a_part_in_order_and_repeats(trace, share, seed):
    sample = taken(trace, sample=share, seed=seed)
    left = iter(trace)
    assert all(request in left for request in sample)  # each found behind the one before
    assert taken(trace, sample=share, seed=seed) == sample


def test_a_sample_has_its_share_and_larger_ones_contain_it():
    trace = [TraceRequest(float(t), t + 1, 1) for t in range(20_000)]
    small, large = (taken(trace, sample=share, seed=3) for share in (0.2, 0.5))
    deviation = math.sqrt(20_000 * 0.2 * 0.8)
    assert abs(len(small) - 4000) < 4 * deviation
    assert set(small) < set(large)
    assert taken(trace, sample=0.2, seed=4) != small


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(1, 512),
    st.integers(0, 8),
    st.sampled_from([0.1, 0.25, 0.3, 1.5, 3.0]),
)
def test_scaled_lengths_round_half_up_and_keep_ids_within_the_request(
    prompt, output, block, more, factor
):
    whole = -(-prompt // block)
    ids = tuple(range(min(whole + more, -(-(prompt + output) // block))))
    request = TraceRequest(0.0, prompt, output, ids, block, "p", prompt // 2, None, 0, prompt)
    (scaled,) = taken([request], scale_lengths=factor)

    def expected(tokens):
        return max(1, math.floor(Fraction(factor) * tokens + Fraction(1, 2))) if tokens else 0

    assert scaled.prompt_tokens == pytest.approx(expected(prompt), abs=1)
    assert scaled.output_tokens == pytest.approx(expected(output), abs=1)
    assert scaled.hash_block == pytest.approx(expected(block), abs=1)
    assert scaled.prefix_tokens <= scaled.prompt_tokens
    assert scaled.cached_tokens == scaled.prompt_tokens
    assert scaled.hash_ids == ids[: len(scaled.hash_ids)]
    tokens = scaled.prompt_tokens + scaled.output_tokens
    assert len(scaled.hash_ids) <= -(-tokens // scaled.hash_block)
    if len(ids) <= whole:  # none of the output was named, so none of it is
        assert scaled.named_tokens <= scaled.prompt_tokens


def test_scaling_keeps_what_is_shared():
    plain, scaled = (read_trace("mooncake-conv", scale_lengths=f).requests for f in (1, 0.25))
    assert [r.hash_ids for r in scaled] == [r.hash_ids for r in plain]
    assert {r.hash_block for r in scaled} == {128}


@given(
    st.integers(1, 300), st.integers(1, 300), st.integers(1, 64), st.booleans(), st.integers(2, 400)
)
def test_a_cut_request_names_only_tokens_that_it_still_has(prompt, output, block, both, most):
    named = prompt + output if both else prompt
    ids = tuple(range(named // block if both else -(-named // block)))
    request = TraceRequest(0.0, prompt, output, ids, block, "p", prompt, None, 0, prompt)
    (cut,) = taken([request], max_length=most)
    length = cut.prompt_tokens + cut.output_tokens
    assert length == min(prompt + output, most)
    assert cut.named_tokens <= min(request.named_tokens, length)
    if cut.prompt_tokens < prompt:
        assert cut.named_tokens <= cut.prompt_tokens
        assert cut.prefix_tokens == cut.cached_tokens == cut.prompt_tokens
    else:
        still = min(request.named_tokens, length)
        if len(cut.hash_ids) <= -(-prompt // block):  # so few are taken to name the prompt only
            still = min(still, prompt)
        assert cut.named_tokens == still


def test_how_far_the_ids_reach():
    def named(prompt, output, ids):
        return TraceRequest(0.0, prompt, output, tuple(range(ids)), 10).named_tokens

    assert named(25, 40, 0) == 0
    assert named(25, 40, 2) == 20
    assert named(25, 40, 3) == 25  # the last id names the prompt's part of its block
    assert named(25, 40, 4) == 40
    assert named(25, 40, 7) == 65


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"start": -1.0}, "start -1.0"),
        ({"start": math.nan}, "start nan"),
        ({"duration": 0.0}, "duration 0.0"),
        ({"sample": 0.0}, "sample 0.0"),
        ({"sample": 1.5}, "sample 1.5"),
        ({"sample": math.nan}, "sample nan"),
        ({"seed": -1}, "seed -1"),
        ({"scale_rate": 0.0}, "scale_rate 0.0"),
        ({"scale_rate": math.inf}, "scale_rate inf"),
        ({"scale_rate": 1e308}, "scale_rate 1e\\+308: .* at most 1,000,000,000"),
        ({"scale_rate": 1e-320}, "scale_rate .*: a request arrives after inf seconds"),
        ({"start": 1e6}, "holds no request in the part that was asked for"),
    ],
)
def test_options_out_of_range(option, reason):
    with pytest.raises(TraceError, match=reason):
        read_trace("azure-conv-2023", **option)


def test_a_stream_is_read_anew_each_time():
    stream = TraceStream("mooncake-conv", Selection(max_length=4000))
    first = list(stream)
    assert first == list(stream) == list(read_trace("mooncake-conv", max_length=4000).requests)
    longer = sum(r.prompt_tokens + r.output_tokens > 4000 for r in TraceStream("mooncake-conv"))
    assert stream.tally.cut == longer > 0
