"""How contiguous pools look for a run: best fit and the buddy system against naive ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.core.buddies import BuddyPool
from kvhouse.core.extents import ExtentPool
from kvhouse.core.memory import make_memory
from kvhouse.core.policy import Placement
from kvhouse.core.request import Request
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.planner import requests_that_fit
from kvhouse.spec.model import FullAttention, ModelSpec

SPEC = ModelSpec("toy", "Toy", (FullAttention(1, 1, 1, 1),), 1, 10, 64, 100, 50, "float32")
LAYOUT = KVLayout.of(SPEC, "fp32", 2)
#: Take so many blocks, or free what was taken the so-manieth time.
OPERATIONS = st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=40)


def runs_of(owner):
    """Free runs as (first block, length), from a list with the owner of each block."""
    runs, begin = [], None
    for block, who in enumerate([*owner, "end"]):
        if who is None and begin is None:
            begin = block
        elif who is not None and begin is not None:
            runs.append((begin, block - begin))
            begin = None
    return runs


def aligned(owner, count):
    """First blocks at which a free, aligned run of a power of two begins that holds ``count``."""
    length, found = 1, []
    while length <= len(owner):
        if length >= count:
            found += [
                (length, start)
                for start in range(0, len(owner) - length + 1, length)
                if all(who is None for who in owner[start : start + length])
            ]
        length *= 2
    return found


def play(pool, blocks, operations, expected):
    """Play ``operations``, and compare each take with what ``expected`` says of the owners."""
    owner, taken = [None] * blocks, []
    for number, (take, argument) in enumerate(operations):
        if take:
            got = pool.take(argument)
            assert got == expected(owner, argument)
            if got:
                taken.append(got)
                for block in got:
                    owner[block] = number
        elif taken:
            for block in (ids := taken.pop(argument % len(taken))):
                owner[block] = None
            pool.give_back(ids)
        free = [block for block, who in enumerate(owner) if who is None]
        assert sorted(pool.free_ids()) == free
        assert pool.free_blocks == len(free)
        for count in (1, 3, 8):
            enough = count <= len(free)
            possible = expected(owner, count) is not None
            assert pool.unusable(count) == (len(free) if enough and not possible else 0)


@given(st.integers(0, 40), OPERATIONS)
def test_best_fit_takes_the_shortest_run(blocks, operations):
    def expected(owner, count):
        fitting = [(length, start) for start, length in runs_of(owner) if length >= count]
        if not count:
            return []
        if not fitting:
            return None
        start = min(fitting)[1]
        return list(range(start, start + count))

    play(ExtentPool(blocks, best=True), blocks, operations, expected)


@given(st.integers(0, 40), OPERATIONS)
def test_buddies_are_the_shortest_aligned_runs(blocks, operations):
    """Joined wherever both halves are free, so every free aligned run can be had."""

    def expected(owner, count):
        if not count:
            return []
        whole = aligned(owner, 1)
        # A run that lies within a longer free one has been joined with its buddy.
        maximal = [
            (length, start)
            for length, start in aligned(owner, count)
            if not any(other > length and first <= start < first + other for other, first in whole)
        ]
        if not maximal:
            return None
        start = min(maximal)[1]
        return list(range(start, start + count))

    play(BuddyPool(blocks), blocks, operations, expected)


@pytest.mark.parametrize(
    ("policy", "tokens"),
    [
        # 9 + 3 tokens: 32 allowed, 9 + 4 rounded up, 12 exactly; in blocks of 2, 16, 7 and 6.
        ("contiguous-max", 32),
        ("contiguous-pow2", 16),
        ("contiguous-oracle", 16),
        ("paged", 9),
    ],
)
def test_buddies_reserve_a_power_of_two_of_blocks(policy, tokens):
    placement = Placement(policy, LAYOUT, 32, 32, "buddy")
    assert placement.tokens_to_admit(9, 9, 3) == tokens


@pytest.mark.parametrize("policy", ["contiguous-max", "contiguous-pow2", "contiguous-oracle"])
@pytest.mark.parametrize("fit", ["first", "best", "buddy"])
@pytest.mark.parametrize("blocks", [1, 31, 32, 100, 129])
def test_the_closed_form_counts_what_the_pool_admits(policy, fit, blocks):
    """Identical requests leave no gaps, whatever the fit."""
    memory = make_memory(policy, LAYOUT, blocks, 32, fit=fit)
    admitted = 0
    while memory.admit(Request(admitted, 9, 3), alone=False) is None:
        admitted += 1
    placement = memory.placement
    assert admitted == requests_that_fit(placement, PoolSize(blocks), 12, 3)


def test_an_unknown_fit():
    with pytest.raises(KvhouseError, match="unknown fit 'worst': choose one of first, best, buddy"):
        make_memory("contiguous-max", LAYOUT, 10, 32, fit="worst")
