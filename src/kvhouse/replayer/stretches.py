"""Many stretches at once, as columns: what is summed up and what is checked of them."""

from __future__ import annotations

from array import array
from operator import attrgetter
from typing import Any

import numpy as np

from kvhouse.core.stretch import Stretch

Ints = np.ndarray[Any, np.dtype[np.int64]]

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
_PLAIN = attrgetter(*_STATED)
_NO_ROWS = (0, 0, 0, 0, 0)


class Stretches:
    """Columns of stretches that were taken, and of their steps.

    Attributes:
        starts: The clock before each stretch.
        seconds: How long each step took.
        cached: For each step, free blocks with content; empty where nothing is shared.
    """

    def __init__(self) -> None:
        self._noted = array("q")
        self.starts, self.seconds = array("d"), array("d")
        self.cached, self._begun, self._excess = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        """Steps."""
        return len(self.seconds)

    def add(self, stretch: Stretch, position: int, start: float, seconds: list[float]) -> None:
        """Note a stretch that was taken.

        Args:
            stretch: The stretch.
            position: Intervals of the drive before it.
            start: The clock before it.
            seconds: How long each step took.
        """
        steps = len(seconds)
        self.starts.append(start)
        self._begun.append(0)
        if steps > 1:
            self._begun.extend(stretch.begun)
            for later, tokens in stretch.excess:
                self._excess.extend((len(self.seconds) + later + 1, tokens))
        if stretch.cached:
            self.cached.extend(stretch.cached)
        self.seconds.extend(seconds)
        sums = _sums(stretch) if stretch.rows else _NO_ROWS
        self._noted.extend((position, steps, *_PLAIN(stretch), *sums))

    def table(self) -> dict[str, Ints]:
        """What was noted of each stretch, by name."""
        whole = np.frombuffer(self._noted, dtype=np.int64).reshape(-1, len(_COLUMNS))
        return dict(zip(_COLUMNS, whole.T, strict=True))

    def begun(self, table: dict[str, Ints]) -> tuple[Ints, Ints]:
        """For each step, what requests have taken since its stretch's first.

        Args:
            table: What was noted of each stretch.

        Returns:
            How many requests took a block in each group, and the tokens of last blocks among
            these that will never be filled.
        """
        excess = np.zeros(len(self), dtype=np.int64)
        sparse = np.frombuffer(self._excess, dtype=np.int64).reshape(-1, 2)
        np.add.at(excess, sparse[:, 0], sparse[:, 1])
        first = np.repeat(np.cumsum(table["steps"]) - table["steps"], table["steps"])
        sums = (np.cumsum(column) for column in (np.frombuffer(self._begun, np.int64), excess))
        # Nothing counts in a stretch's first step itself.
        requests, tokens = (total - total[first] for total in sums)
        return requests, tokens


def places(steps: Ints) -> tuple[Ints, Ints]:
    """For each step of stretches of so many steps: its stretch, and how many went before in it."""
    begun = np.repeat(np.cumsum(steps) - steps, steps)
    return np.repeat(np.arange(len(steps)), steps), np.arange(len(begun)) - begun


def _sums(stretch: Stretch) -> tuple[int, int, int, int, int]:
    samples = firsts = products = pairs = 0
    for first, count, sampled in stretch.rows:
        samples += sampled
        firsts += first
        products += first * count
        pairs += (count * count + count) // 2
    return len(stretch.rows), samples, firsts, products, pairs
