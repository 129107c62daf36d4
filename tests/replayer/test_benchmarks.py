"""The benchmarks on the bundled slices, against sums and an LRU written as plainly as can be.

On the whole public traces they give 33.0, 16.7 and 8.3 %, 0.5 and 13.4 %, and 0.3664, 0.2112,
0.3257 and 0.3589 (benchmarks/README.md).
"""

import importlib.util
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.replayer import read_trace

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def module(name):
    found = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    loaded = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    return loaded


AZURE, MOONCAKE = module("azure_waste"), module("mooncake_hits")
LENGTHS = [r.prompt_tokens + r.output_tokens for r in read_trace("azure-conv-2023").requests]
PROMPTS = MOONCAKE.prompts_of(read_trace("mooncake-conv").requests)


@pytest.mark.parametrize("limit", [4096, 8192, 16384])
def test_reservations_hold_so_many_tokens(limit):
    used = 0
    for length in LENGTHS:
        used += length if length < limit else limit
    assert AZURE.reserved_share(LENGTHS, limit) == pytest.approx(used / (limit * len(LENGTHS)))


@pytest.mark.parametrize("block", [16, 512])
def test_blocks_waste_their_tails(block):
    tails = slots = 0
    for length in LENGTHS:
        tail = 0
        while (length + tail) % block:
            tail += 1
        tails, slots = tails + tail, slots + length + tail
    assert AZURE.paged_waste(LENGTHS, block) == pytest.approx(tails / slots)


def naive_lru(prompts, size):
    """Every block asked for is the most recently used; the least recent makes room."""
    cache, hits = OrderedDict(), 0
    for prompt in prompts:
        for name in prompt:
            hits += name in cache
            cache[name] = None
            cache.move_to_end(name)
            if size is not None and len(cache) > size:
                cache.popitem(last=False)
    return hits / sum(len(prompt) for prompt in prompts)


@pytest.mark.parametrize("size", [None, 1, 60, 300, 1000])
def test_hit_rates_are_those_of_plain_lru(size):
    assert MOONCAKE.hit_rate(PROMPTS, size) == pytest.approx(naive_lru(PROMPTS, size))


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_any_prompts_in_any_cache(prompts, size):
    assert MOONCAKE.hit_rate(prompts, size) == pytest.approx(naive_lru(prompts, size))


def test_tail_first_forgets_the_head_last():
    """Of 1 2 3 a cache of 4 must forget two for 8 9 0: the tail, not the head that is asked for."""
    prompts = [[1, 2, 3], [8, 9, 0], [1]]
    assert MOONCAKE.hit_rate(prompts, 4) == 0.0
    assert MOONCAKE.hit_rate(prompts, 4, tail_first=True) == 1 / 7


def test_a_cache_smaller_than_a_prompt():
    with pytest.raises(SystemExit, match="take a larger one"):
        MOONCAKE.hit_rate([[1, 2, 3]], 2, tail_first=True)


@pytest.mark.parametrize(
    ("script", "trace", "shown"),
    [
        ("azure_waste", "azure-conv-2023", "paged, block  512"),
        ("mooncake_hits", "mooncake-conv", "infinite"),
    ],
)
def test_they_run_as_scripts(script, trace, shown):
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), trace]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown in done.stdout


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("peers_replay")


@pytest.mark.parametrize(("name", "named"), [("azure-conv-2023", False), ("mooncake-conv", True)])
def test_a_peer_is_given_the_same_requests(peers, tmp_path, name, named):
    setup = peers.fitting(peers.setup_of(read_trace(name)), 40)
    job = peers.aisimulate_job(setup, tmp_path / "trace.jsonl")
    assert job["config"]["traffic"]["source"]["paths"] == [str(tmp_path / "trace.jsonl")]
    given = read_trace(str(tmp_path / "trace.jsonl")).requests
    assert len(given) == 40
    for theirs, ours in zip(given, setup.trace.requests, strict=True):
        assert theirs.arrival == pytest.approx(ours.arrival, abs=1e-6)
        assert theirs.prompt_tokens == ours.prompt_tokens
        assert theirs.output_tokens == ours.output_tokens
        assert not named or theirs.hash_ids == ours.hash_ids
    ids = [number for request in given for number in request.hash_ids]
    assert (len(set(ids)) == len(ids)) is not named
    rows = peers.vidur_job(setup)["requests"]
    assert rows == [(r.arrival, r.prompt_tokens, r.output_tokens) for r in setup.trace.requests]


def test_requests_longer_than_the_model_are_for_nobody(peers):
    setup = peers.setup_of(read_trace("backlog:prompt=8000,output=uniform(1,400),requests=60"))
    lengths = [r.prompt_tokens + r.output_tokens for r in setup.trace.requests]
    kept = [r.prompt_tokens + r.output_tokens for r in peers.fitting(setup, None).trace.requests]
    assert kept == [length for length in lengths if length <= 8192]
    assert 0 < len(kept) < 60
