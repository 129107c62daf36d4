"""A drive over time, in a few equal bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.errors import KvhouseError
from kvhouse.replayer.intervals import Interval, Intervals

#: Most bins of a timeline.
MOST_BINS = 10_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """Means weighted by time in equal bins from time 0 to the end of a drive.

    Attributes:
        bin_seconds: Length of a bin.
        running: Requests that held memory.
        waiting: Requests in the queue.
        ledger: Bytes of the pool by class; the classes of a bin sum to the pool.
    """

    bin_seconds: float
    running: list[float]
    waiting: list[float]
    ledger: dict[str, list[float]]

    @classmethod
    def of(cls, intervals: Sequence[Interval], bins: int) -> Timeline:
        """Of a drive's intervals, which have no gaps; without bins where no time passed.

        Raises:
            KvhouseError: Fewer than 1 bin or more than ``MOST_BINS``.
        """
        if not 1 <= bins <= MOST_BINS:
            raise KvhouseError(f"a timeline of {bins} points: give 1 to {MOST_BINS:,}")
        columns = Intervals.of(intervals).columns()
        seconds = columns["seconds"]
        times = np.concatenate(([0.0], np.cumsum(seconds)))
        width = float(times[-1]) / bins
        edges = np.linspace(0.0, times[-1], bins + 1 if width else 1)

        def means(name: str) -> list[float]:
            # What has passed by each edge: linear within an interval, whose value is constant.
            areas = seconds * columns[name]
            passed = np.interp(edges, times, np.concatenate(([0.0], np.cumsum(areas))))
            return [float(area) / width for area in np.diff(passed)]

        return cls(
            bin_seconds=width,
            running=means("running"),
            waiting=means("waiting"),
            ledger={name: means(name) for name in LEDGER_CLASSES},
        )
