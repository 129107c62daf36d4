"""Which content a full tier gives up for new content: LRU, or ARC."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Replacement(Protocol[K]):
    """The keys in a cache of fixed capacity, in an order of the policy's own."""

    def __iter__(self) -> Iterator[K]:
        """Every key that is in the cache."""
        ...

    def touch(self, key: K) -> None:
        """Take note that a key in the cache was asked for."""
        ...

    def admit(self, key: K, pinned: Collection[K]) -> tuple[K, ...] | None:
        """Take in a key that is not in the cache.

        Args:
            key: The new key.
            pinned: Keys in the cache that must stay.

        Returns:
            The key that left for it, if one had to; None where all are pinned, and then nothing
            changes.
        """
        ...

    def drop(self, key: K) -> None:
        """Remove a key from the cache and forget it."""
        ...


class LRU(Generic[K]):
    """The least recently used leaves first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[K, None] = OrderedDict()

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def touch(self, key: K) -> None:
        """Make a key the most recently used."""
        self._keys.move_to_end(key)

    def admit(self, key: K, pinned: Collection[K]) -> tuple[K, ...] | None:
        """Take in a new key; see ``Replacement.admit``."""
        gone: tuple[K, ...] = ()
        if len(self._keys) == self._capacity:
            victim = _oldest(self._keys, pinned)
            if victim is None:
                return None
            del self._keys[victim]
            gone = (victim,)
        self._keys[key] = None
        return gone

    def drop(self, key: K) -> None:
        """Remove a key."""
        del self._keys[key]


class ARC(Generic[K]):
    """Adaptive replacement: keys asked for once and keys asked for again share the cache.

    Megiddo and Modha 2003 ("ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST, figure 4).
    Lists of keys that lately left each half (the paper's B1 and B2) say which half is too small.
    So a long scan, whose keys come once, does not flush what is asked for again and again.

    Beside the paper, keys may be pinned, so that the next oldest leaves instead, or dropped, and
    then a place is free without anything leaving. Without these it is the paper's algorithm.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        #: The size that the half of keys asked for once should have; the paper's p.
        self._target = 0.0
        self._once: OrderedDict[K, None] = OrderedDict()
        self._again: OrderedDict[K, None] = OrderedDict()
        self._left_once: OrderedDict[K, None] = OrderedDict()
        self._left_again: OrderedDict[K, None] = OrderedDict()

    def __iter__(self) -> Iterator[K]:
        yield from self._once
        yield from self._again

    def touch(self, key: K) -> None:
        """Note that a key was asked for again (case I of the paper)."""
        self._once.pop(key, None)
        self._again[key] = None
        self._again.move_to_end(key)

    def admit(self, key: K, pinned: Collection[K]) -> tuple[K, ...] | None:
        """Take in a new key (cases II to IV of the paper); see ``Replacement.admit``."""
        if self._full and all(resident in pinned for resident in self):
            return None
        if key in self._left_once:
            grown = max(1.0, len(self._left_again) / len(self._left_once))
            self._target = min(self._target + grown, self._capacity)
            gone = self._replace(len(self._once) > self._target, pinned)
            del self._left_once[key]
            self._again[key] = None
        elif key in self._left_again:
            shrunk = max(1.0, len(self._left_once) / len(self._left_again))
            self._target = max(self._target - shrunk, 0.0)
            gone = self._replace(len(self._once) >= self._target, pinned)
            del self._left_again[key]
            self._again[key] = None
        else:
            gone = self._make_room(pinned)
            self._once[key] = None
        return gone

    def drop(self, key: K) -> None:
        """Remove a key."""
        (self._once if key in self._once else self._again).pop(key)

    @property
    def _full(self) -> bool:
        return len(self._once) + len(self._again) == self._capacity

    def _make_room(self, pinned: Collection[K]) -> tuple[K, ...]:
        """Make room for a key that is in none of the lists (case IV)."""
        once = len(self._once) + len(self._left_once)
        again = len(self._again) + len(self._left_again)
        if once == self._capacity:
            if not self._left_once:
                return self._leave(self._once, None, pinned)
            self._left_once.popitem(last=False)
        elif once + again == 2 * self._capacity:
            self._left_again.popitem(last=False)
        return self._replace(len(self._once) > self._target, pinned)

    def _replace(self, from_once: bool, pinned: Collection[K]) -> tuple[K, ...]:
        """Let the oldest key of one half leave, of the other where there is none to leave."""
        if not self._full:
            return ()
        halves = [(self._again, self._left_again), (self._once, self._left_once)]
        if from_once:
            halves.reverse()
        return self._leave(*halves[0], pinned) or self._leave(*halves[1], pinned)

    def _leave(
        self,
        half: OrderedDict[K, None],
        left: OrderedDict[K, None] | None,
        pinned: Collection[K],
    ) -> tuple[K, ...]:
        victim = _oldest(half, pinned)
        if victim is None:
            return ()
        del half[victim]
        if left is not None:
            left[victim] = None
        return (victim,)


#: How a tier chooses what to give up, by name.
REPLACEMENTS = ("lru", "arc")


def make_replacement(name: str, capacity: int) -> Replacement[K]:
    """A policy of ``REPLACEMENTS`` for a cache of ``capacity`` keys."""
    return ARC(capacity) if name == "arc" else LRU(capacity)


def _oldest(keys: OrderedDict[K, None], pinned: Collection[K]) -> K | None:
    """The first key that may leave."""
    return next((key for key in keys if key not in pinned), None)
