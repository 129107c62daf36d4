"""The one-call API, from names to figures."""

import pytest

import kvhouse
from kvhouse.errors import KvhouseError
from kvhouse.replayer import replay
from kvhouse.replayer.traces import read_trace

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
    ],
)
def test_impossible_input(change, reason):
    options = {"trace": "mooncake-conv", "model": "llama-2-7b", "device": "l4", "kv_memory": GIB}
    with pytest.raises(KvhouseError, match=reason):
        replay(**{**options, **change})
