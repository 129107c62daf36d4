"""What a picture of a drive needs, gathered while it goes on, in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.core.scheduler import Scheduler
from kvhouse.replayer.curves import Curve, curves_of
from kvhouse.replayer.intervals import Intervals
from kvhouse.replayer.pool_map import Array, Sight, Written, look_at, written
from kvhouse.replayer.records import DriveLog, RequestRecord
from kvhouse.replayer.timeline import Timeline

#: Most moments that are kept; with more, every other one is dropped.
MOST_MOMENTS = 600
#: Moments that are aimed at where the length of a drive can be foretold.
_AIM = 450
#: Most blocks that are looked at.
MOST_ROWS = 256
#: Bins of the timeline.
BINS = 400


@dataclass(frozen=True, slots=True)
class PoolMap:
    """Who held which block at some moments, as the allocator had placed them.

    Of a pool with more than ``MOST_ROWS`` blocks, evenly spread ones are shown, each for those
    around it. What holds at a moment holds until the next, or to the end.

    Attributes:
        times: The moments, in seconds, ascending; of shape [moments].
        blocks: The ids of the blocks shown; of shape [rows].
        owners: One more than the place of a block's request in ``requests``, 0 for nobody; of
            shape [moments, rows].
        kinds: The place of a block's class in ``LEDGER_CLASSES``; of the same shape.
        counts: Blocks of the whole pool by class; of shape [moments, classes].
        requests: The requests that appear.
    """

    times: Array
    blocks: Array
    owners: Array
    kinds: Array
    counts: Array
    requests: tuple[RequestRecord, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """A drive as a picture shows it.

    Attributes:
        pool: Who held which block when.
        timeline: The ledger and the requests, as means over equal bins.
        curves: The times of requests, by name.
    """

    pool: PoolMap
    timeline: Timeline
    curves: dict[str, Curve]


class Recorder:
    """Looks at one drive's pool at the first step after each of equally spaced moments.

    It changes nothing, so the drive is the same with and without it.

    Args:
        span: How long the drive will take, in seconds, as far as that is known beforehand.
    """

    def __init__(self, span: float = 0.0) -> None:
        #: When the pool is to be looked at again.
        self.due = 0.0
        self._apart = span / _AIM
        self._times: list[float] = []
        self._sights: list[Sight] = []
        self._blocks: Array | None = None
        self._recording: Recording | None = None

    @property
    def recording(self) -> Recording:
        """What was gathered.

        Raises:
            RuntimeError: The drive has not ended.
        """
        if self._recording is None:
            raise RuntimeError("the drive has not ended")
        return self._recording

    def look(self, now: float, scheduler: Scheduler, written: Written = written) -> None:
        """Look at the pool, with a step planned and not yet applied, if it is time to.

        Args:
            now: When the step begins.
            scheduler: Whose pool it is.
            written: See ``look_at``.
        """
        if now >= self.due:
            self._add(now, look_at(scheduler, self._rows(scheduler), written))
            self.due = (math.floor(now / self._apart) + 1) * self._apart if self._apart else now

    def wait(self, now: float, until: float, scheduler: Scheduler) -> None:
        """Look at the pool of a scheduler that has no work from ``now`` to before ``until``."""
        if until > self.due:
            self._add(max(now, self.due), look_at(scheduler, self._rows(scheduler)))
            self.due = math.ceil(until / self._apart) * self._apart if self._apart else until

    def finish(self, log: DriveLog) -> None:
        """Take in how the drive went, whose intervals were kept."""
        end = Intervals.of(log.intervals).seconds
        self._recording = Recording(
            self._pool_map(log.requests),
            Timeline.of(log.intervals, BINS),
            curves_of(log.requests, end),
        )
        self._times, self._sights = [], []

    def _rows(self, scheduler: Scheduler) -> Array:
        if self._blocks is None:
            total = scheduler.memory.total_blocks
            rows = min(total, MOST_ROWS)
            self._blocks = (2 * np.arange(rows, dtype=np.int64) + 1) * total // max(1, 2 * rows)
        return self._blocks

    def _add(self, time: float, sight: Sight) -> None:
        self._times.append(time)
        self._sights.append(sight)
        if len(self._times) > MOST_MOMENTS:
            self._thin(time)

    def _thin(self, now: float) -> None:
        """Keep the first moment of each span of time, of which there are half as many."""
        self._apart = max(2 * self._apart, 2 * now / MOST_MOMENTS)
        spans = np.floor(np.array(self._times) / self._apart)
        kept = np.flatnonzero(np.diff(spans, prepend=-1.0))
        self._times = [self._times[place] for place in kept]
        self._sights = [self._sights[place] for place in kept]

    def _pool_map(self, records: list[RequestRecord]) -> PoolMap:
        rows = 0 if self._blocks is None else len(self._blocks)
        shape = len(self._sights), rows
        owners = np.array([sight.owners for sight in self._sights], dtype=np.uint32).reshape(shape)
        ids, places = np.unique(owners[owners > 0], return_inverse=True)
        owners[owners > 0] = places + 1
        of_id = {record.request: record for record in records}
        classes = len(LEDGER_CLASSES)
        return PoolMap(
            times=np.array(self._times),
            blocks=np.empty(0, dtype=np.int64) if self._blocks is None else self._blocks,
            owners=owners,
            kinds=np.array([s.kinds for s in self._sights], dtype=np.uint8).reshape(shape),
            counts=np.array([s.counts for s in self._sights]).reshape(-1, classes),
            requests=tuple(of_id[int(id_) - 1] for id_ in ids),
        )
