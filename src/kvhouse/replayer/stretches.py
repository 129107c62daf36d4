"""Many stretches at once, as columns: what is summed up and what is checked of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvhouse.core.stretch import Stretch

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

#: Of the first step's rows beside those that decode: their number, how many sample, the sums of
#: their first positions and of tokens times first position, and the pairs of each new token with
#: those of its row up to itself.
ROW_SUMS = ("rows", "samples", "firsts", "products", "pairs")
#: The prompt that goes on in the later steps.
CHUNK = ("chunk", "chunk_first")
#: What is noted of every stretch, in this order: its place, its length, and as ``Stretch`` says.
_OF_ALL = (
    *("position", "steps", "index", "decoding", "later", "before", "written", "tokens"),
    *("running", "waiting", "free", "room"),
)
_OF_ROWS = ("idle", *CHUNK, *ROW_SUMS)
_OF_WINDOWS = ("passed", "passing", "short")
_OF_SHARING = ("external", "free_slots", "shared", "saved", "in_shared")


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
        unheld: For each step, blocks that nobody holds; empty where ``begun`` tells.
    """

    table: dict[str, Ints]
    start: Floats
    later: Ints
    seconds: Floats
    begun: Ints
    excess: Ints
    cached: Ints
    unheld: Ints
    _spread: dict[str, Ints] = field(default_factory=dict)

    def spread(self, name: str) -> Ints:
        """For each step, what was noted of its stretch."""
        if name not in self._spread:
            column = self.table[name]
            several = np.repeat(column, self.table["steps"]) if column.any() else self._nothing
            self._spread[name] = several
        return self._spread[name]

    @property
    def _nothing(self) -> Ints:
        return np.zeros(len(self.later), dtype=np.int64)

    def free(self, groups: int) -> Ints:
        """For each step, blocks that nobody holds, where so many groups take blocks alike."""
        return self.unheld if len(self.unheld) else self.spread("free") - self.begun * groups


class Stretches:
    """What is noted of stretches as they are taken."""

    def __init__(self) -> None:
        # Lists: they keep numbers as they are, and become arrays all at once.
        self._of_all, self._of_rows = _Columns(_OF_ALL), _Columns(_OF_ROWS)
        self._of_windows, self._of_sharing = _Columns(_OF_WINDOWS), _Columns(_OF_SHARING)
        self._starts: list[float] = []
        self._seconds: list[float] = []
        self._cached: list[int] = []
        self._unheld: list[int] = []
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
        place = len(self._starts)
        self._starts.append(start)
        self._begun.append(0)
        self._begun += stretch.begun
        for later, tokens in stretch.excess:
            self._excess.append((len(self._seconds) + later + 1, tokens))
        self._cached += stretch.cached
        self._seconds += seconds
        self._of_all.add(place, _of_all(stretch, position, len(seconds)))
        if stretch.rows or stretch.idle:
            self._of_rows.add(place, _of_rows(stretch))
        if stretch.seen:
            self._unheld += stretch.unheld
            self._of_windows.add(place, (stretch.passed, stretch.passing, stretch.short))
        if stretch.shared or stretch.external or stretch.free_slots:
            self._of_sharing.add(place, _of_sharing(stretch))

    def steps(self) -> Steps:
        """All of them as columns."""
        table: dict[str, Ints] = {}
        for columns in (self._of_all, self._of_rows, self._of_windows, self._of_sharing):
            table.update(columns.table(len(self._starts)))
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
            _ints(self._unheld),
        )


class _Columns:
    """Numbers of stretches, by name; those of stretches of which none are noted are zeros."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._places: list[int] = []
        self._numbers: list[int] = []

    def add(self, place: int, numbers: tuple[int, ...]) -> None:
        """Note a stretch's numbers, in the order of the names."""
        self._places.append(place)
        self._numbers += numbers

    def table(self, stretches: int) -> dict[str, Ints]:
        """An array for each name, with a number for each of so many stretches."""
        whole: Ints = np.zeros((len(self._names), stretches), dtype=np.int64)
        whole[:, self._places] = _ints(self._numbers).reshape(-1, len(self._names)).T
        return dict(zip(self._names, whole, strict=True))


def _of_all(stretch: Stretch, position: int, steps: int) -> tuple[int, ...]:
    return (
        position,
        steps,
        stretch.index,
        stretch.decoding,
        stretch.later,
        stretch.before,
        stretch.written,
        stretch.tokens,
        stretch.running,
        stretch.waiting,
        stretch.free,
        stretch.room,
    )


def _of_rows(stretch: Stretch) -> tuple[int, ...]:
    samples = firsts = products = pairs = 0
    for first, count, sampled in stretch.rows:
        samples += sampled
        firsts += first
        products += first * count
        pairs += (count * count + count) // 2
    sums = len(stretch.rows), samples, firsts, products, pairs
    return stretch.idle, stretch.chunk, stretch.chunk_first, *sums


def _of_sharing(stretch: Stretch) -> tuple[int, ...]:
    shared = stretch.shared, stretch.saved, stretch.in_shared
    return stretch.external, stretch.free_slots, *shared


def _ints(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)


def _floats(numbers: Sequence[float]) -> Floats:
    return np.fromiter(numbers, np.float64, len(numbers))
