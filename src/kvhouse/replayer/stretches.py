"""Many stretches at once, as columns: what is summed up and what is checked of them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from operator import attrgetter
from struct import Struct
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
#: What is kept of a stretch, in this order; see ``Stretch``.
_STATED = (
    *("index", "decoding", "later", "before", "written", "tokens", "idle", *CHUNK),
    *("running", "waiting", "free", "room", "free_slots"),
    *("external", "shared", "saved", "in_shared"),
)
_COLUMNS = ("position", "steps", *_STATED, *ROW_SUMS)
_LINE = Struct(f"{len(_COLUMNS)}q")
_PLAIN = attrgetter(*_STATED)
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

    def spread(self, name: str) -> Ints:
        """For each step, what was noted of its stretch."""
        return np.repeat(self.table[name], self.table["steps"])


class Stretches:
    """What is noted of stretches as they are taken."""

    def __init__(self) -> None:
        self._noted = bytearray()
        self._starts, self._seconds = array("d"), array("d")
        self._cached, self._begun, self._excess = array("q"), array("q"), array("q")

    def add(self, stretch: Stretch, position: int, start: float, seconds: list[float]) -> None:
        """Note a stretch that was taken.

        Args:
            stretch: The stretch.
            position: Intervals of the drive before it.
            start: The clock before it.
            seconds: How long each step took.
        """
        steps = len(seconds)
        self._starts.append(start)
        self._begun.append(0)
        self._begun.extend(stretch.begun)
        for later, tokens in stretch.excess:
            self._excess.extend((len(self._seconds) + later + 1, tokens))
        if stretch.cached:
            self._cached.extend(stretch.cached)
        self._seconds.extend(seconds)
        sums = _sums(stretch) if stretch.rows else _NO_ROWS
        self._noted += _LINE.pack(position, steps, *_PLAIN(stretch), *sums)

    def steps(self) -> Steps:
        """All of them as columns; nothing can be noted beside them any more."""
        whole = np.frombuffer(self._noted, dtype=np.int64).reshape(-1, len(_COLUMNS))
        table = dict(zip(_COLUMNS, whole.T, strict=True))
        first: Ints = np.repeat(np.cumsum(table["steps"]) - table["steps"], table["steps"])
        excess: Ints = np.zeros(len(first), dtype=np.int64)
        sparse = np.frombuffer(self._excess, dtype=np.int64).reshape(-1, 2)
        np.add.at(excess, sparse[:, 0], sparse[:, 1])
        # Nothing counts in a stretch's first step itself.
        begun, excess = (
            total - total[first]
            for total in (np.cumsum(np.frombuffer(self._begun, np.int64)), np.cumsum(excess))
        )
        return Steps(
            table,
            np.repeat(np.frombuffer(self._starts), table["steps"]),
            np.arange(len(first)) - first,
            np.frombuffer(self._seconds),
            begun,
            excess,
            np.frombuffer(self._cached, dtype=np.int64),
        )


def _sums(stretch: Stretch) -> tuple[int, int, int, int, int]:
    samples = firsts = products = pairs = 0
    for first, count, sampled in stretch.rows:
        samples += sampled
        firsts += first
        products += first * count
        pairs += (count * count + count) // 2
    return len(stretch.rows), samples, firsts, products, pairs
