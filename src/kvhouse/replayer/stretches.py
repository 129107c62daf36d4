"""Many stretches at once, as columns: what is summed up and what is checked of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvhouse.core.stretch import STATED, Stretch

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

#: Of the first step's rows beside those that decode: their number, how many sample, the sums of
#: their first positions and of tokens times first position, and the pairs of each new token with
#: those of its row up to itself.
ROW_SUMS = ("rows", "samples", "firsts", "products", "pairs")
#: The prompt that goes on in the later steps.
CHUNK = ("chunk", "chunk_first")
_COLUMNS = ("position", "steps", *STATED, *ROW_SUMS)
_NO_ROWS = (0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Steps:
    """Every step of stretches that were taken.

    Attributes:
        table: What was noted of each stretch, by name; see ``Stretch``.
        start: For each step, the clock before its stretch.
        later: For each step, how many went before in its stretch.
        seconds: How long each step took.
        begun: For each step, the requests that took blocks since the first of its stretch.
        excess: The tokens of last blocks among these that will never be filled.
        cached: For each step, free blocks with content; empty where nothing is shared.
    """

    table: dict[str, Ints]
    start: Floats
    later: Ints
    seconds: Floats
    begun: Ints
    excess: Ints
    cached: Ints
    _spread: dict[str, Ints] = field(default_factory=dict)

    def spread(self, name: str) -> Ints:
        """For each step, what was noted of its stretch."""
        if name not in self._spread:
            self._spread[name] = np.repeat(self.table[name], self.table["steps"])
        return self._spread[name]


class Stretches:
    """What is noted of stretches as they are taken."""

    def __init__(self) -> None:
        # Lists: they keep numbers as they are, and become arrays all at once.
        self._noted: list[int] = []
        self._starts: list[float] = []
        self._seconds: list[float] = []
        self._cached: list[int] = []
        self._begun: list[int] = []
        self._excess: list[tuple[int, int]] = []

    def add(self, stretch: Stretch, position: int, start: float, seconds: list[float]) -> None:
        """Note a stretch that was taken.

        Args:
            stretch: The stretch.
            position: Intervals of the drive before it.
            start: The clock before it.
            seconds: How long each step took.
        """
        self._starts.append(start)
        self._begun.append(0)
        self._begun += stretch.begun
        for later, tokens in stretch.excess:
            self._excess.append((len(self._seconds) + later + 1, tokens))
        self._cached += stretch.cached
        self._noted += (position, len(seconds))
        self._noted += stretch.stated()
        self._noted += _sums(stretch) if stretch.rows else _NO_ROWS
        self._seconds += seconds

    def steps(self) -> Steps:
        """All of them as columns."""
        whole = _ints(self._noted).reshape(-1, len(_COLUMNS))
        table = dict(zip(_COLUMNS, whole.T, strict=True))
        first: Ints = np.repeat(np.cumsum(table["steps"]) - table["steps"], table["steps"])
        excess: Ints = np.zeros(len(first), dtype=np.int64)
        if self._excess:
            places, tokens = zip(*self._excess, strict=True)
            np.add.at(excess, _ints(places), _ints(tokens))
        # Nothing counts in a stretch's first step itself.
        begun, excess = (
            total - total[first] for total in (np.cumsum(_ints(self._begun)), np.cumsum(excess))
        )
        return Steps(
            table,
            np.repeat(_floats(self._starts), table["steps"]),
            np.arange(len(first)) - first,
            _floats(self._seconds),
            begun,
            excess,
            _ints(self._cached),
        )


def _sums(stretch: Stretch) -> tuple[int, int, int, int, int]:
    samples = firsts = products = pairs = 0
    for first, count, sampled in stretch.rows:
        samples += sampled
        firsts += first
        products += first * count
        pairs += (count * count + count) // 2
    return len(stretch.rows), samples, firsts, products, pairs


def _ints(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)


def _floats(numbers: Sequence[float]) -> Floats:
    return np.fromiter(numbers, np.float64, len(numbers))
