"""Replays of one rank of several, and of one replica of several."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse import devices, spec
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.planner.cases import case_for
from kvhouse.replayer import Setup, Trace, TraceRequest, read_trace, replay
from kvhouse.spec.model import FullAttention, ModelSpec

#: Two heads of one number, their keys and values: 16 bytes a token in float32, 8 on each of two.
TOY = ModelSpec("toy", "Toy", (FullAttention(2, 2, 1, 1),), 2, 10, 64, 100, 90, "float32")
A100 = devices.get("a100-80g")


def device(**links):
    return Device("d", "d", 2**30, 1e3, {"float32": 1e9}, "given", "test", **links)


def toy(requests, of=None, **options):
    defaults = {"kv_format": "fp32", "block_size": 2, "kv_blocks": 500, "watermark": 0.0}
    return Setup(Trace("toy", requests), TOY, of or device(), **{**defaults, **options})


REQUESTS = st.lists(
    st.tuples(st.floats(0, 30), st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=8
).map(lambda several: [TraceRequest(*one) for one in sorted(several)])


@given(REQUESTS, st.sampled_from([None, 50.0, 1e6]), st.integers(4, 64))
@settings(max_examples=40, deadline=None)
def test_leaping_over_steps_of_ranks_is_stepping(requests, link, budget):
    setup = toy(requests, device(peer_link=link), tp=2, token_budget=budget)
    assert setup.drive() == setup.drive(on_plan=lambda _: None)


@given(REQUESTS, st.floats(1.0, 1e6))
@settings(max_examples=40, deadline=None)
def test_a_link_adds_what_the_sums_send(requests, rate):
    """Two sums in the one layer, of 2 numbers of 4 bytes a token; a ring of two sends them once.

    All wait from the start, so that the steps are the same with and without a link.
    """
    without = toy(requests, tp=2, as_backlog=True).drive()
    counted = toy(requests, device(peer_link=rate), tp=2, as_backlog=True).drive()
    assert counted.computed_tokens == without.computed_tokens
    sums = counted.computed_tokens * 2 * 8 / rate
    assert counted.makespan_seconds - without.makespan_seconds == pytest.approx(
        sums, rel=1e-6, abs=1e-9 * counted.makespan_seconds
    )


@pytest.mark.parametrize(
    ("links", "rate"),
    [
        ({"peer_link": 5e9, "host_link": 1e9}, 5e9),
        ({"host_link": 1e9}, 1e9),
        ({}, None),
    ],
)
def test_the_link_that_is_counted_is_named(links, rate):
    requests = [TraceRequest(0.0, 4, 2)]
    assert toy(requests, device(**links), tp=2).drive().scenario["sum_bytes_per_second"] == rate
    alone = toy(requests, device(**links)).drive()
    assert (alone.scenario["tp"], alone.scenario["sum_bytes_per_second"]) == (1, None)


def test_a_rank_keeps_its_heads_and_its_share_of_the_weights():
    """Llama 2 7B: 32 layers, 32 KV heads of 128 in bf16, of which a rank of 4 keeps a quarter."""
    one = Setup(read_trace("azure-conv-2023", limit=4), spec.load("llama-2-7b"), A100)
    four = replace(one, tp=4)
    assert four.layout.block_bytes == 16 * 2 * 32 * 8 * 128 * 2 == one.layout.block_bytes // 4
    usable = int(A100.usable_bytes * 0.9)
    freed = four.drive().pool.bytes - one.drive().pool.bytes
    weights = usable - one.scenario().kv_memory
    assert freed == pytest.approx(weights * 3 / 4, rel=1e-3)


def test_a_decode_step_of_ranks_is_the_planner_s():
    """Of a request of 1000 + 2 tokens, the second token is one decode step of a batch of one."""
    trace = Trace("one", [TraceRequest(0.0, 1000, 2)])
    result = replay(trace, "llama-3.1-8b", "h100-80g", tp=4)
    case = case_for("llama-3.1-8b", "h100-80g", tp=4, context=1000)
    assert case.rank().layers[0].kv_heads == 2
    roofline = Setup(trace, case.spec, case.device, tp=4).roofline
    step = roofline.decode_floor(1, 1000).seconds + case.link_seconds(1)
    assert result.per_token_seconds.mean == pytest.approx(step, rel=1e-9)
    prefill = roofline.prefill(1000).seconds + case.link_seconds(1000)
    assert result.first_token_seconds.mean == pytest.approx(prefill, rel=1e-9)


def test_an_impossible_number_of_ranks():
    with pytest.raises(KvhouseError, match="do not divide by 3 ranks"):
        replay(Trace("one", [TraceRequest(0.0, 10, 2)]), "llama-2-7b", "a100-80g", tp=3)


@given(st.integers(1, 12), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_replicas_share_the_requests_out_in_turn(count, replicas):
    requests = [TraceRequest(float(i), 1 + i, 2) for i in range(count)]
    setup = toy(requests)
    dealt = [[] for _ in range(replicas)]
    for index, request in enumerate(requests):
        dealt[index % replicas].append(request)
    for number, mine in enumerate(dealt, 1):
        one = replace(setup, replica=(number, replicas))
        if not mine:
            with pytest.raises(KvhouseError, match=f"replica {number} of {replicas} gets none"):
                one.drive()
            continue
        alone = replace(setup, trace=Trace("toy", mine)).drive()
        result = one.drive()
        assert (result.scenario["replica"], result.scenario["replicas"]) == (number, replicas)
        assert {**result.scenario, "replica": 1, "replicas": 1} == alone.scenario
        assert replace(result, scenario={}) == replace(alone, scenario={})


@pytest.mark.parametrize("replica", [(0, 2), (3, 2), (1, 0), (-1, -1)])
def test_no_such_replica(replica):
    with pytest.raises(KvhouseError, match="number them from 1 on"):
        toy([TraceRequest(0.0, 1, 1)], replica=replica).drive()
