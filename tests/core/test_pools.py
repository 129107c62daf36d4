"""The pools against sets of free ids, over generated histories."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.core.blocks import BlockPool
from kvhouse.core.cached_pool import CachedPool, Content
from kvhouse.core.extents import ExtentPool
from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.errors import RequestRejected
from kvhouse.layout import KVLayout
from kvhouse.spec.layers import FullAttention, SlidingAttention
from kvhouse.spec.model import ModelSpec

# Each action takes a number of blocks (positive) or gives back the k-th oldest holding (else).
histories = st.lists(st.integers(-8, 9).filter(bool), max_size=60)


def first_fit(free: set[int], count: int) -> list[int] | None:
    """The lowest run of ``count`` consecutive free ids, found by trying every start."""
    for start in sorted(free):
        run = list(range(start, start + count))
        if free.issuperset(run):
            return run
    return None


def runs_of(free: set[int]) -> list[tuple[int, int]]:
    starts = [block for block in sorted(free) if block - 1 not in free]
    ends = [block for block in sorted(free) if block + 1 not in free]
    return [(start, end - start + 1) for start, end in zip(starts, ends, strict=True)]


@given(st.integers(1, 40), histories)
def test_extents_are_first_fit_and_always_joined(blocks, history):
    pool, free, held = ExtentPool(blocks), set(range(blocks)), []
    for action in history:
        if action > 0:
            run = first_fit(free, action)
            assert pool.take(action) == run
            if run is not None:
                free -= set(run)
                held.append(run)
        elif held:
            run = held.pop(-action % len(held))
            pool.give_back(run)
            free |= set(run)
        assert pool.free_runs() == runs_of(free)
        assert pool.free_blocks == len(free)
        scattered = len(free) >= 5 and first_fit(free, 5) is None
        assert pool.unusable(5) == (len(free) if scattered else 0)


@given(st.integers(1, 40), histories)
def test_paged_blocks_are_never_lost_or_given_twice(blocks, history):
    pool, free, held = BlockPool(blocks), set(range(blocks)), []
    for action in history:
        if action > 0:
            taken = pool.take(action)
            assert (taken is None) == (action > len(free))
            if taken is not None:
                assert len(set(taken)) == action
                assert free.issuperset(taken)
                free -= set(taken)
                held.append(taken)
        elif held:
            given_back = held.pop(-action % len(held))
            pool.give_back(given_back)
            free |= set(given_back)
        assert set(pool.free_ids()) == free
        assert pool.free_blocks == len(pool.free_ids()) == len(free)


def test_a_freed_request_is_reused_from_its_head():
    pool = BlockPool(8)
    table = pool.take(3)
    assert table == [0, 1, 2]
    pool.give_back(table)
    assert pool.take(2) == [0, 1]


def test_contiguous_blocks_are_consecutive():
    pool = ExtentPool(10)
    for count in (3, 1, 4):
        taken = pool.take(count)
        assert {b - a for a, b in pairwise(taken)} <= {1}


@pytest.mark.parametrize(
    "pool",
    [BlockPool(997), ExtentPool(997), CachedPool(997, 1)],
    ids=lambda pool: type(pool).__name__,
)
def test_a_million_operations_lose_nothing(pool):
    """At random, and with contents and sharing where the pool has them."""
    chance = random.Random(5)
    held: list[list[int]] = []
    for operation in range(1_000_000):
        if held and (chance.random() < 0.5 or len(held) > 200):
            pool.give_back(held.pop(chance.randrange(len(held))))
            continue
        taken = pool.take(chance.randrange(1, 9))
        if taken is None:
            continue
        held.append(taken)
        if isinstance(pool, CachedPool):
            pool.seal(taken[0], Content(0, operation % 5_000))
            found = pool.find(Content(0, chance.randrange(5_000)))
            if found is not None:
                pool.share([found])
                held.append([found])
    for ids in held:
        pool.give_back(ids)
    assert sorted(pool.free_ids()) == list(range(997))
    assert pool.free_blocks == 997


def test_buddies_refuse_at_submission_what_no_run_can_hold():
    """A window takes a block more than its tokens: 9 in all, and 10 blocks are runs of 8 and 2."""
    layers = (FullAttention(1, 1, 8, 8), SlidingAttention(1, 1, 8, 8, window=2))
    spec = ModelSpec("m", "M", layers, 8, 8, 64, 1, 1, "float16")
    memory = make_memory(
        "contiguous-max", KVLayout.of(spec, block_size=1), 10, 6, in_flight=1, fit="buddy"
    )
    assert (memory.layout.blocks_for(6, 1), memory.pool.largest) == (8, 8)
    memory = make_memory(
        "contiguous-max", KVLayout.of(spec, block_size=1), 10, 7, in_flight=1, fit="buddy"
    )
    with pytest.raises(RequestRejected, match="at most 8 of them in one run"):
        Scheduler(memory, SchedulerConfig(7, 1)).submit(3, 4)
