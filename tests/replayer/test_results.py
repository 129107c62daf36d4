"""A drive's summary against figures worked out by hand."""

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.core.ledger import Ledger
from kvhouse.core.memory import make_memory
from kvhouse.layout import KVLayout
from kvhouse.replayer.drive import DriveLog, Interval, RequestRecord
from kvhouse.replayer.results import Distribution, summarise
from kvhouse.spec.model import FullAttention, ModelSpec

SPEC = ModelSpec("toy", "Toy", (FullAttention(1, 1, 1, 1),), 1, 10, 64, 100, 50, "float32")
MEMORY = make_memory("paged", KVLayout.of(SPEC, "fp32", 2), 4, 32, 0.0)  # 4 blocks of 16 B


def interval(start, seconds, step, tokens, running, waiting, preempted, used, free):
    ledger = Ledger(64, used, 0, 64 - used - free, 0, 0, 0, free, 0)
    return Interval(start, seconds, step, tokens, running, waiting, preempted, ledger)


def example():
    requests = [
        RequestRecord(0, 3, 2, 0.0, None, 0.0, 1.0, 4.0, 2, 0),
        RequestRecord(1, 50, 2, 0.5, "too long"),
        RequestRecord(2, 2, 1, 1.0, None, 1.0, 10.0, 10.0, 1, 1),
    ]
    intervals = [
        interval(0.0, 1.0, 0, 3, 1, 0, 0, 24, 32),
        interval(1.0, 3.0, 1, 3, 2, 0, 0, 48, 0),
        interval(4.0, 4.0, None, 0, 0, 1, 0, 0, 64),
        interval(8.0, 2.0, 2, 2, 1, 0, 1, 16, 48),
    ]
    return DriveLog("modelled", requests, intervals)


def test_figures_by_hand():
    result = summarise(example(), MEMORY)
    assert (result.submitted, result.finished, len(result.rejections)) == (3, 2, 1)
    assert (result.rejections[0].index, result.rejections[0].reason) == (1, "too long")
    assert (result.prompt_tokens, result.output_tokens) == (5, 3)
    assert result.recomputed_tokens == 8 - (3 + 2 - 1) - (2 + 1 - 1)
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
        "recomputed_tokens",
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
        "ledger",
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


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentiles_interpolate_linearly(values):
    spread = Distribution.of(values)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert spread.p50 == pytest.approx(cuts[49], abs=1e-6)
    assert spread.p90 == pytest.approx(cuts[89], abs=1e-6)
    assert spread.p99 == pytest.approx(cuts[98], abs=1e-6)
    assert spread.max == max(values)
    assert spread.mean == pytest.approx(math.fsum(values) / len(values))
