"""LRU and ARC against plain lists, and against each other on the patterns that set them apart."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.replacement import REPLACEMENTS, make_replacement


class NaiveLRU:
    """Keys in a list, the least recently used first."""

    def __init__(self, capacity):
        self.capacity, self.keys = capacity, []

    def ask(self, key, pinned):
        if key in self.keys:
            self.keys.remove(key)
            self.keys.append(key)
            return ()
        gone = ()
        if len(self.keys) == self.capacity:
            loose = [resident for resident in self.keys if resident not in pinned]
            if not loose:
                return None
            self.keys.remove(loose[0])
            gone = (loose[0],)
        self.keys.append(key)
        return gone

    def drop(self, key):
        self.keys.remove(key)

    def residents(self):
        return self.keys


class NaiveARC:
    """Figure 4 of Megiddo and Modha 2003, line by line on lists whose last is the most recent.

    Two additions: a pinned page is passed over, in favour of the other list if need be, and
    REPLACE does nothing while a page's place is free.
    """

    def __init__(self, capacity):
        self.c, self.p = capacity, 0
        self.t1, self.t2, self.b1, self.b2 = [], [], [], []

    def residents(self):
        return self.t1 + self.t2

    def drop(self, key):
        (self.t1 if key in self.t1 else self.t2).remove(key)

    def ask(self, x, pinned):
        if x in self.t1 + self.t2:  # case I
            (self.t1 if x in self.t1 else self.t2).remove(x)
            self.t2.append(x)
            return ()
        resident = self.residents()
        if len(resident) == self.c and set(resident) <= set(pinned):
            return None
        if x in self.b1:  # case II
            delta = 1 if len(self.b1) >= len(self.b2) else len(self.b2) / len(self.b1)
            self.p = min(self.p + delta, self.c)
            gone = self.replace(x, pinned)
            self.b1.remove(x)
            self.t2.append(x)
            return gone
        if x in self.b2:  # case III
            delta = 1 if len(self.b2) >= len(self.b1) else len(self.b1) / len(self.b2)
            self.p = max(self.p - delta, 0)
            gone = self.replace(x, pinned)
            self.b2.remove(x)
            self.t2.append(x)
            return gone
        gone = ()  # case IV
        if len(self.t1) + len(self.b1) == self.c:
            if len(self.t1) < self.c:
                self.b1.pop(0)
                gone = self.replace(x, pinned)
            else:
                victim = next(key for key in self.t1 if key not in pinned)
                self.t1.remove(victim)
                gone = (victim,)
        elif len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) >= self.c:
            if len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) == 2 * self.c:
                self.b2.pop(0)
            gone = self.replace(x, pinned)
        self.t1.append(x)
        return gone

    def replace(self, x, pinned):
        if len(self.residents()) < self.c:
            return ()
        once = self.t1 and (len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p))
        order = [(self.t1, self.b1), (self.t2, self.b2)]
        for top, bottom in order if once else order[::-1]:
            loose = [key for key in top if key not in pinned]
            if loose:
                top.remove(loose[0])
                bottom.append(loose[0])
                return (loose[0],)
        raise AssertionError("some page was not pinned")


NAIVE = {"lru": NaiveLRU, "arc": NaiveARC}


def ask(policy, key, pinned=()):
    """Ask for a key as a cache does: what left for it, None if it could not be taken in."""
    if key in set(policy):
        policy.touch(key)
        return ()
    return policy.admit(key, pinned)


@settings(max_examples=300)
@given(
    name=st.sampled_from(REPLACEMENTS),
    capacity=st.integers(1, 6),
    asked=st.lists(
        st.tuples(st.integers(0, 14), st.sets(st.integers(0, 14), max_size=6), st.booleans()),
        max_size=120,
    ),
    disturbed=st.booleans(),
)
def test_as_plain_lists_would(name, capacity, asked, disturbed):
    policy, naive = make_replacement(name, capacity), NAIVE[name](capacity)
    for key, some, drops in asked:
        pinned = some & set(naive.residents()) if disturbed else set()
        assert ask(policy, key, pinned) == naive.ask(key, pinned)
        assert list(policy) == naive.residents()
        if disturbed and drops and naive.residents():
            gone = naive.residents()[key % len(naive.residents())]
            naive.drop(gone)
            policy.drop(gone)
        if name == "arc":  # the paper's invariants, which pins and drops must keep
            once, again = len(naive.t1) + len(naive.b1), len(naive.t2) + len(naive.b2)
            assert once <= capacity
            assert once + again <= 2 * capacity


def hits(name, capacity, asked):
    policy, count = make_replacement(name, capacity), 0
    for key in asked:
        count += key in set(policy)
        ask(policy, key)
    return count


def test_a_scan_flushes_lru_but_not_arc():
    often = list(range(8))
    asked, new = often * 2, 100
    for _ in range(50):
        asked += range(new, new + 20)  # a scan longer than the cache, never asked for again
        asked += often
        new += 20
    assert hits("lru", 10, asked) == 8  # of the second round before the first scan, and no more
    assert hits("arc", 10, asked) == 8 + 50 * 8


def test_arc_follows_what_is_recent_as_lru_does():
    # Each key twice in a row, then never again: nothing for a frequency list to win.
    asked = [key for first in range(200) for key in (first, first)]
    assert hits("arc", 10, asked) == hits("lru", 10, asked) == 200


def test_arc_beats_lru_where_popularity_is_skewed():
    chance = random.Random(1)
    popular = [min(int(chance.paretovariate(0.9)), 500) for _ in range(6000)]
    asked = [key for i, key in enumerate(popular) for key in (key, 1000 + i)]
    assert hits("arc", 40, asked) > 1.1 * hits("lru", 40, asked)


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_nothing_changes_where_all_is_pinned(name):
    policy = make_replacement(name, 2)
    ask(policy, "a")
    ask(policy, "b")
    before = list(policy)
    assert policy.admit("c", {"a", "b"}) is None
    assert list(policy) == before
    assert policy.admit("c", {"a"}) == ("b",)
