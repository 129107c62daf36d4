"""Searches against every setting tried one by one."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse import devices, spec
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.replayer import SLO, Setup, read_trace, replay
from kvhouse.replayer.find import Goal, at_rate, find_max_rate, find_min_memory
from kvhouse.replayer.traces import Trace, TraceRequest
from kvhouse.spec.model import FullAttention, ModelSpec

SPEC = ModelSpec("toy", "Toy", (FullAttention(1, 1, 1, 1),), 1, 10, 64, 100, 50, "float32")
#: A step reads the 160 bytes of the body at least: 0.16 s.
DEVICE = Device("toy", "toy", 2**20, 1e3, {"float32": 1e6}, "datasheet", "test")


def setup(requests, **options):
    defaults = {"kv_format": "fp32", "block_size": 2, "watermark": 0.0, "kv_blocks": 200}
    return Setup(Trace("toy", requests), SPEC, DEVICE, **{**defaults, **options})


REQUESTS = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=6
).map(lambda requests: [TraceRequest(*request) for request in requests])


@given(REQUESTS, st.sampled_from(["paged", "contiguous-max", "contiguous-oracle"]))
@settings(max_examples=25, deadline=None)
def test_the_smallest_pool_is_the_end_of_a_row_of_failures(requests, policy):
    """Every pool up to the one found is driven; the one below it fails, as the search says."""
    given = setup(requests, policy=policy)
    found = find_min_memory(given, Goal(None))

    def holds(blocks):
        result = replace(given, kv_blocks=blocks).drive()
        return not result.rejections and not result.preemptions

    assert holds(found.value)
    assert found.result.preemptions == 0
    assert found.pool_bytes == found.value * 16
    if found.value > 1:
        assert not holds(found.value - 1)
        assert found.bounded
    for probe in found.probes:
        assert probe.holds == holds(int(probe.value))


def test_one_request_needs_its_own_blocks():
    """10 + 7 tokens, of which the last is never computed: 8 blocks of 2."""
    found = find_min_memory(setup([TraceRequest(0.0, 10, 7)]), Goal(None))
    assert (found.find, found.value, found.unit) == ("min-memory", 8, "blocks")
    assert found.requests_per_second is None


def test_a_share_lets_the_longest_be_rejected():
    requests = [TraceRequest(float(i * 10), 10, 7) for i in range(9)]
    requests.append(TraceRequest(95.0, 30, 20))
    slo = SLO(latency=1e6)
    assert find_min_memory(setup(requests), Goal(slo, 1.0)).value == 25
    tolerant = find_min_memory(setup(requests), Goal(slo, 0.9))
    assert tolerant.value == 8
    assert len(tolerant.result.rejections) == 1


def test_memory_does_not_help_a_slow_device():
    with pytest.raises(KvhouseError, match="more memory does not help"):
        find_min_memory(setup([TraceRequest(0.0, 10, 7)]), Goal(SLO(first_token=0.01)))


def test_no_request_that_could_fit():
    too_long = setup([TraceRequest(0.0, 100, 7)])
    with pytest.raises(KvhouseError, match="1 requests exceed the maximum length of 64 tokens"):
        find_min_memory(too_long, Goal(None))
    with pytest.raises(KvhouseError, match="no request is within the maximum length of 64"):
        find_min_memory(too_long, Goal(SLO(latency=1.0)))


def test_the_largest_rate_against_replays_of_scaled_traces():
    """On a device of which one request at a time can be had, waiting is what misses the SLO."""
    requests = [TraceRequest(float(i), 4, 10) for i in range(20)]
    given = setup(requests, max_running=1)
    alone = replace(given, trace=Trace("toy", requests[:1])).drive().latency_seconds.max
    slo = SLO(first_token=alone)
    found = find_max_rate(given, Goal(slo, 1.0))
    assert found.requests_per_second == pytest.approx(found.value)  # the trace has 1 a second
    met = {probe.value: probe.share for probe in found.probes}
    for factor, share in met.items():
        scaled = [one._replace(arrival=one.arrival / factor) for one in requests]
        figures = replay(
            Trace("toy", scaled), SPEC, DEVICE, slo=slo, kv_format="fp32", block_size=2,
            watermark=0.0, kv_blocks=200, max_running=1,
        )  # fmt: skip
        assert figures.goodput.share == share
    failing = min(factor for factor, share in met.items() if share < 1 and factor > found.value)
    assert failing <= found.value * 1.01
    assert met[found.value] == 1.0
    assert found.result.scenario["selection"]["scale_rate"] == found.value
    # Each takes `alone` seconds, so a queue builds up where they come faster than that.
    assert found.value == pytest.approx(1 / alone, rel=0.1)


def test_a_rate_above_every_bound():
    found = find_max_rate(
        setup([TraceRequest(0.0, 4, 2), TraceRequest(1.0, 4, 2)]), Goal(SLO(latency=1e6))
    )
    assert not found.bounded
    assert found.value == 2.0**20
    assert found.requests_per_second == 2.0**20


@pytest.mark.parametrize(
    ("requests", "options", "slo", "reason"),
    [
        ([TraceRequest(0.0, 4, 2), TraceRequest(1.0, 4, 2)], {}, None, "needs an SLO"),
        ([TraceRequest(0.0, 4, 2)] * 3, {}, SLO(latency=1.0), "arrive at once"),
        (
            [TraceRequest(0.0, 4, 2), TraceRequest(5e-324, 4, 2)],
            {},
            SLO(latency=1.0),
            "arrive at once",
        ),
        (
            [TraceRequest(0.0, 4, 2), TraceRequest(1.0, 4, 2)],
            {"as_backlog": True},
            SLO(latency=1.0),
            "arrive at once",
        ),
        (
            [TraceRequest(0.0, 4, 2), TraceRequest(1.0, 4, 2)],
            {},
            SLO(latency=0.01),
            "asks for more than the device can give",
        ),
    ],
)
def test_rates_that_cannot_be_found(requests, options, slo, reason):
    with pytest.raises(KvhouseError, match=reason):
        find_max_rate(setup(requests, **options), Goal(slo))


@pytest.mark.parametrize("factor", [1e-300, 5e-324])
def test_a_rate_so_low_that_requests_never_come(factor):
    slowed = setup([TraceRequest(0.0, 4, 2), TraceRequest(1.0, 4, 2)])
    with pytest.raises(KvhouseError, match=r"would arrive after .* seconds; give"):
        at_rate(slowed, factor)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, math.nan])
def test_a_share_out_of_range(share):
    with pytest.raises(KvhouseError, match="give a share above 0"):
        Goal(None, share)


def test_the_pool_found_for_a_real_trace_is_that_of_replay():
    trace = read_trace("azure-conv-2023", limit=40, max_length=2048)
    given = Setup(trace, spec.load("llama-2-7b"), devices.get("a100-80g"))
    found = find_min_memory(given, Goal(None))
    options = {"kv_blocks": int(found.value)}
    assert replay(trace, "llama-2-7b", "a100-80g", **options).preemptions == 0
    options = {"kv_blocks": int(found.value) - 1}
    below = replay(trace, "llama-2-7b", "a100-80g", **options)
    assert below.preemptions or below.rejections
