"""The one-call API, from names to figures."""

import pytest

import kvhouse
from kvhouse.errors import KvhouseError
from kvhouse.replayer import replay
from kvhouse.replayer.traces import Trace, TraceRequest, read_trace

GIB = 2**30


@pytest.fixture(scope="module")
def trace():
    return read_trace("azure-conv-2023", limit=60, max_length=4096)


def test_paging_admits_more_from_the_same_pool(trace):
    """5 GiB hold two reservations of 2 GiB; the mean request of 60 takes less than 0.7 GiB."""
    results = {
        policy: replay(
            trace, "llama-2-7b", "a100-80g", kv_memory=5 * GIB, policy=policy, as_backlog=True
        )
        for policy in ("contiguous", "paged")
    }
    contiguous, paged = results["contiguous"], results["paged"]
    assert contiguous.running.peak == 2
    mean_tokens = sum(r.prompt_tokens + r.output_tokens for r in trace.requests) / 60
    assert mean_tokens * 524_288 < 0.7 * GIB
    assert paged.running.peak > 2 * contiguous.running.peak
    assert paged.makespan_seconds < contiguous.makespan_seconds
    for result in results.values():
        assert (result.submitted, result.finished) == (60, 60)
        assert result.prompt_tokens == sum(r.prompt_tokens for r in trace.requests)
        assert result.output_tokens == sum(r.output_tokens for r in trace.requests)
        assert result.pool.bytes == 5 * GIB
        assert result.timing == "modelled"


def test_without_backlog_the_traces_times_count(trace):
    result = replay(trace, "llama-2-7b", "a100-80g", kv_memory=20 * GIB)
    assert result.makespan_seconds > trace.requests[-1].arrival
    assert result.queue_seconds.p50 < 1


def test_no_step_beats_the_bandwidth(trace):
    """A decoding request waits at least for the weights of 7B, 13.2 GB, at 2.039 TB/s."""
    result = replay(trace, "llama-2-7b", "a100-80g", kv_memory=20 * GIB)
    assert result.per_token_seconds.p50 > 13.2e9 / 2.039e12


def test_the_front_door_offers_it():
    result = kvhouse.replay("mooncake-conv", "smollm2", "l4", kv_memory=GIB)
    assert result.submitted == result.finished + len(result.rejections) == 64


def test_a_pool_in_blocks_goes_before_one_in_bytes(trace):
    """8 GiB are 1,024 blocks of 16 tokens of 512 KiB."""
    options = {"max_length": 4096, "as_backlog": True}
    in_bytes = replay(trace, "llama-2-7b", "a100-80g", kv_memory=8 * GIB, **options)
    in_blocks = replay(trace, "llama-2-7b", "a100-80g", kv_memory=GIB, kv_blocks=1024, **options)
    assert in_blocks == in_bytes
    # Weights that do not fit matter no more: the blocks are what an engine has.
    assert replay(trace, "llama-2-70b", "l4", kv_blocks=2000, **options).pool.blocks == 2000


def test_prefixes_of_the_trace_are_found_again():
    """Against what a set of the ids seen so far would find in a pool that forgets nothing."""
    traffic = read_trace("mooncake-conv", scale_rate=0.01)  # so that nobody waits
    seen, repeated = set(), 0
    for request in traffic.requests:
        ids = request.hash_ids[: (request.prompt_tokens - 1) // 512]
        repeated += next((i for i, name in enumerate(ids) if name not in seen), len(ids))
        seen |= set(request.hash_ids)
    options = {"kv_blocks": 10**5, "block_size": 512, "max_length": 131_072}
    cached = replay(traffic, "llama-3.1-8b", "a100-80g", prefix_cache=True, **options)
    plain = replay(traffic, "llama-3.1-8b", "a100-80g", **options)
    assert plain.prefix is None
    assert cached.prefix.blocks == repeated > 0
    assert cached.prefix.tokens == repeated * 512 == cached.reused_tokens
    assert plain.computed_tokens - cached.computed_tokens == cached.reused_tokens
    assert cached.first_token_seconds.mean < plain.first_token_seconds.mean


def test_orders_by_priority_and_by_length():
    """One at a time: who is second is the order's doing."""
    requests = [
        TraceRequest(0.0, 400, 4),
        TraceRequest(0.0, 300, 4, priority=2),
        TraceRequest(0.0, 100, 4, priority=3),
        TraceRequest(0.0, 200, 4, priority=1),
    ]
    trace, options = Trace("toy", requests), {"max_running": 1, "kv_memory": GIB}

    def ended(order):
        records = []
        replay(trace, "llama-2-7b", "l4", order=order, on_ended=records.append, **options)
        return [record.prompt_tokens for record in records]

    assert ended("fcfs") == [400, 300, 100, 200]
    assert ended("priority") == [400, 200, 300, 100]
    assert ended("shortest") == [100, 200, 300, 400]


def test_prefill_first_never_decodes_beside_a_prompt(trace):
    prompts = [request.prompt_tokens for request in trace.requests]  # by id: none is rejected

    def mixing_steps(prefill_first):
        plans = []
        result = replay(
            trace, "llama-2-7b", "a100-80g", prefill_first=prefill_first, kv_memory=20 * GIB,
            as_backlog=True, max_length=4096, on_plan=plans.append,
        )  # fmt: skip
        assert result.scenario["prefill_first"] is prefill_first
        assert result.preemptions == len(result.rejections) == 0
        kinds = ({row.first < prompts[row.request] for row in plan.rows} for plan in plans)
        return sum(len(kind) == 2 for kind in kinds)

    assert mixing_steps(False) > 0
    assert mixing_steps(True) == 0


@pytest.mark.parametrize("order", ["fcfs", "shortest", "priority"])
@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("paged", {}),
        ("paged", {"prefix_cache": True}),
        ("paged", {"prefill_first": True}),
        ("contiguous-pow2", {}),
        ("contiguous-oracle", {"fit": "best"}),
        ("contiguous-oracle", {"fit": "buddy"}),
    ],
)
def test_in_the_smallest_pool_for_the_largest_request_all_finish(policy, options, order):
    """Conversations of up to 2,048 tokens: 128 blocks, which are a power of two as well."""
    talk = "conversations:rate=2,turns=4,pause=1,prompt=uniform(20,300),output=uniform(5,200)"
    traffic = read_trace(talk + ",system=64,context=2048,requests=40,seed=3")
    result = replay(
        traffic, "llama-2-7b", "a100-80g", kv_blocks=128, max_length=2048, policy=policy,
        order=order, **options,
    )  # fmt: skip
    assert (result.submitted, result.finished) == (40, 40)
    assert result.prompt_tokens == sum(one.prompt_tokens for one in traffic.requests)
    assert result.output_tokens == sum(one.output_tokens for one in traffic.requests)
    assert (result.prefix is not None and result.prefix.tokens > 0) == ("prefix_cache" in options)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"trace": "nowhere"}, "no trace nowhere"),
        ({"model": "nothing"}, "no model 'nothing'"),
        ({"device": "abacus"}, "unknown device 'abacus'"),
        ({"policy": "random"}, "unknown policy 'random'"),
        ({"kv_format": "fp99"}, "unknown KV format 'fp99'"),
        ({"weight_dtype": "int3"}, "unknown weight dtype 'int3'"),
        ({"kv_memory": 1000}, "smaller than one block"),
        ({"kv_memory": -1}, "KV memory of -1 bytes"),
        ({"token_budget": 0}, "token_budget 0"),
        ({"block_size": 0}, "block size 0"),
        ({"watermark": 1.5}, "watermark 1.5"),
        ({"kv_blocks": 0}, "a pool has at least 1"),
        ({"order": "longest"}, "unknown order 'longest'"),
        ({"prefix_cache": True, "policy": "contiguous"}, "only paged memory can share"),
        ({"timeline": 0}, "a timeline of 0 points"),
    ],
)
def test_impossible_input(change, reason):
    options = {"trace": "mooncake-conv", "model": "llama-2-7b", "device": "l4", "kv_memory": GIB}
    with pytest.raises(KvhouseError, match=reason):
        replay(**{**options, **change})
