"""A drive's summary against figures worked out by hand."""

import json
import math
import statistics
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.core.ledger import Ledger
from kvhouse.core.memory import make_memory
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer.records import DriveLog, Interval, RequestRecord
from kvhouse.replayer.results import Distribution
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.summary import summarise
from kvhouse.spec.model import FullAttention, ModelSpec

SPEC = ModelSpec("toy", "Toy", (FullAttention(1, 1, 1, 1),), 1, 10, 64, 100, 50, "float32")
LAYOUT = KVLayout.of(SPEC, "fp32", 2)
MEMORY = make_memory("paged", LAYOUT, 4, 32, 0.0)  # 4 blocks of 16 B
SHARING = make_memory("paged", LAYOUT, 4, 32, 0.0, share=True)


def interval(start, seconds, step, tokens, running, waiting, preempted, used, free):
    ledger = Ledger(64, used, 0, 64 - used - free, 0, 0, 0, free, 0)
    return Interval(start, seconds, step, tokens, running, waiting, preempted, ledger)


def record(*asked, **became):
    made = RequestRecord(*asked)
    for name, value in became.items():
        setattr(made, name, value)
    return made


def example():
    requests = [
        record(0, 3, 2, 0.0, admitted=0.0, first_token=1.0, finished=4.0, generated=2),
        record(1, 50, 2, 0.5, rejection="too long"),
        record(2, 2, 1, 1.0, admitted=1.0, first_token=10.0, finished=10.0, generated=1),
    ]
    requests[2].preemptions, requests[2].recomputed, requests[2].lost = 1, 2, 2
    intervals = [
        interval(0.0, 1.0, 0, 3, 1, 0, 0, 24, 32),
        interval(1.0, 3.0, 1, 3, 2, 0, 0, 48, 0),
        interval(4.0, 4.0, None, 0, 0, 1, 0, 0, 64),
        interval(8.0, 2.0, 2, 2, 1, 0, 1, 16, 48),
    ]
    return DriveLog("modelled", requests, intervals, 3, Counter(full=2, watermark=1))


def test_figures_by_hand():
    result = summarise(example(), MEMORY)
    assert (result.submitted, result.finished, len(result.rejections)) == (3, 2, 1)
    assert (result.rejections[0].index, result.rejections[0].reason) == (1, "too long")
    assert (result.prompt_tokens, result.output_tokens) == (5, 3)
    assert result.computed_tokens == 8
    assert result.recomputed_tokens == 8 - (3 + 2 - 1) - (2 + 1 - 1)
    assert result.reused_tokens == 0
    assert (result.refusals.full, result.refusals.watermark) == (2, 1)
    assert (result.refusals.fragmented, result.refusals.fragmented_seconds) == (0, 0.0)
    assert (result.preemptions, result.steps) == (1, 3)
    assert result.makespan_seconds == 10.0
    assert result.output_tokens_per_second == 0.3
    assert result.requests_per_second == 0.2
    assert (result.running.peak, result.running.mean) == (2, (1 + 6 + 0 + 2) / 10)
    assert (result.waiting.peak, result.waiting.mean) == (1, 0.4)
    assert result.queue_seconds.mean == 0.0
    assert (result.first_token_seconds.mean, result.first_token_seconds.max) == (5.0, 9.0)
    assert (result.latency_seconds.mean, result.latency_seconds.max) == (6.5, 9.0)
    assert (result.per_token_seconds.p50, result.per_token_seconds.max) == (3.0, 3.0)
    assert result.ledger.mean_bytes == {
        "used": pytest.approx((24 + 144 + 0 + 32) / 10),
        "shared": 0.0,
        "reserved": pytest.approx((8 + 48 + 0 + 0) / 10),
        "internal": 0.0,
        "external": 0.0,
        "cached": 0.0,
        "free": pytest.approx((32 + 0 + 256 + 96) / 10),
    }
    assert result.ledger.mean_share["used"] == pytest.approx(20 / 64)
    assert result.ledger.peak_used_bytes == 48
    assert (result.pool.policy, result.pool.bytes, result.pool.blocks) == ("paged", 64, 4)
    assert (result.pool.block_bytes, result.pool.block_size) == (16, 2)


def test_nothing_came():
    result = summarise(DriveLog("measured"), MEMORY)
    assert (result.submitted, result.steps, result.makespan_seconds) == (0, 0, 0.0)
    assert result.output_tokens_per_second == 0.0
    assert result.first_token_seconds is None
    assert result.ledger.mean_bytes["free"] == 64.0
    assert result.ledger.mean_share == {
        "used": 0.0,
        "shared": 0.0,
        "reserved": 0.0,
        "internal": 0.0,
        "external": 0.0,
        "cached": 0.0,
        "free": 1.0,
    }


def test_stable_keys_as_json():
    data = json.loads(json.dumps(summarise(example(), MEMORY).to_dict()))
    assert list(data) == [
        "scenario",
        "timing",
        "pool",
        "submitted",
        "finished",
        "rejections",
        "prompt_tokens",
        "output_tokens",
        "computed_tokens",
        "reused_tokens",
        "recomputed_tokens",
        "loaded_tokens",
        "preemptions",
        "steps",
        "makespan_seconds",
        "output_tokens_per_second",
        "requests_per_second",
        "running",
        "waiting",
        "queue_seconds",
        "first_token_seconds",
        "per_token_seconds",
        "latency_seconds",
        "goodput",
        "refusals",
        "prefix",
        "tiers",
        "ledger",
        "timeline",
    ]
    assert data["rejections"] == [{"index": 1, "reason": "too long"}]
    assert set(data["latency_seconds"]) == {"mean", "p50", "p90", "p99", "max"}


def test_a_lost_request_is_noticed():
    log = example()
    log.requests[2].finished = None
    with pytest.raises(RuntimeError, match="requests were lost"):
        summarise(log, MEMORY)


def test_lost_tokens_are_noticed():
    log = example()
    del log.intervals[1:]
    with pytest.raises(RuntimeError, match="tokens were lost: 3 computed where 6 were needed"):
        summarise(log, MEMORY)


def test_tokens_that_left_the_pool_unseen_are_noticed():
    log = example()
    log.requests[2].lost = 0
    with pytest.raises(RuntimeError, match="8 computed and 0 taken up or loaded, where 6 were"):
        summarise(log, MEMORY)


def test_tokens_that_were_sampled_and_not_given_out_are_noticed():
    log = example()
    log.sampled = 4
    with pytest.raises(RuntimeError, match="tokens were lost: 4 sampled, 3 given out"):
        summarise(log, MEMORY)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        # Of the finished two: first tokens after 1 and 9 s, 3 s a token and none, 4 and 9 s in all.
        (SLO(first_token=1.0), 1),
        (SLO(first_token=9.0), 2),
        (SLO(per_token=2.9), 1),
        (SLO(per_token=3.0, latency=4.0), 1),
        (SLO(first_token=1.0, per_token=2.0), 0),
        (SLO(latency=9.0), 2),
    ],
)
def test_goodput_counts_who_met_every_limit(slo, met):
    goodput = summarise(example(), MEMORY, slo=slo).goodput
    assert (goodput.requests, goodput.share) == (met, met / 3)
    assert goodput.requests_per_second == met / 10


@pytest.mark.parametrize("limits", [{}, {"latency": 0.0}, {"first_token": math.inf}])
def test_an_slo_that_says_nothing(limits):
    with pytest.raises(KvhouseError):
        SLO(**limits)


def test_goodput_of_nothing():
    goodput = summarise(DriveLog("modelled"), MEMORY, slo=SLO(latency=1.0)).goodput
    assert (goodput.requests, goodput.share, goodput.requests_per_second) == (0, 0.0, 0.0)


def test_prefix_hits_by_hand():
    """Request 0 found 1 block of its 3 tokens; request 2 came back to 1 token of another's."""
    log = example()
    log.requests[0].found = log.requests[0].reused = log.requests[0].taken_up = 2
    log.requests[2].reused = log.requests[2].taken_up = 1
    log.intervals[0] = replace(log.intervals[0], tokens=0)
    log.intervals[1] = replace(log.intervals[1], ledger=replace(log.intervals[1].ledger, saved=16))
    hits = summarise(log, SHARING).prefix
    assert (hits.requests, hits.request_share) == (1, 0.5)
    assert (hits.tokens, hits.token_share) == (2, 2 / 5)
    assert (hits.blocks, hits.block_share) == (1, 1 / 2)  # 3 and 2 tokens: one whole block each
    assert hits.later_tokens == 1
    assert hits.saved_bytes == 16 * 3.0 / 10
    assert summarise(example(), MEMORY).prefix is None


def test_a_timeline_by_hand():
    """Bins of 2 s over steps of 1, 3 and 2 s with 4 s of waiting between."""
    timeline = summarise(example(), MEMORY, timeline=5).timeline
    assert timeline.bin_seconds == 2.0
    assert timeline.running == pytest.approx([1.5, 2.0, 0.0, 0.0, 1.0])
    assert timeline.waiting == pytest.approx([0.0, 0.0, 1.0, 1.0, 0.0])
    assert timeline.ledger["used"] == pytest.approx([36.0, 48.0, 0.0, 0.0, 16.0])
    assert timeline.ledger["free"] == pytest.approx([16.0, 0.0, 64.0, 64.0, 48.0])


@given(
    st.lists(st.tuples(st.floats(0.0, 50.0), st.integers(0, 64)), min_size=1, max_size=12),
    st.integers(1, 7),
)
def test_a_timeline_adds_up_to_the_whole(steps, bins):
    intervals, start = [], 0.0
    for index, (seconds, used) in enumerate(steps):
        intervals.append(interval(start, seconds, index, 0, 1, 0, 0, used, 64 - used))
        start += seconds
    result = summarise(DriveLog("modelled", [], intervals), MEMORY, timeline=bins)
    timeline = result.timeline
    assert timeline.bin_seconds * bins == pytest.approx(start)
    assert {len(values) for values in timeline.ledger.values()} == {bins if start else 0}
    for name, values in timeline.ledger.items():
        area = math.fsum(value * timeline.bin_seconds for value in values)
        assert area == pytest.approx(result.ledger.mean_bytes[name] * start, abs=1e-6)
    for place in range(bins if start else 0):
        whole = math.fsum(values[place] for values in timeline.ledger.values())
        assert whole == pytest.approx(64)


@pytest.mark.parametrize("bins", [0, -1, 10_001])
def test_a_timeline_of_so_many_points_is_refused(bins):
    with pytest.raises(KvhouseError, match="give 1 to 10,000"):
        summarise(example(), MEMORY, timeline=bins)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentiles_interpolate_linearly(values):
    spread = Distribution.of(values)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert spread.p50 == pytest.approx(cuts[49], abs=1e-6)
    assert spread.p90 == pytest.approx(cuts[89], abs=1e-6)
    assert spread.p99 == pytest.approx(cuts[98], abs=1e-6)
    assert spread.max == max(values)
    assert spread.mean == pytest.approx(math.fsum(values) / len(values))
