"""How a drive passed its time: stretches in which nothing changes, and exact sums over them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, overload

import numpy as np

from kvhouse.core.ledger import LEDGER_CLASSES, Ledger
from kvhouse.core.memory import KVMemory
from kvhouse.replayer.exact import ExactSum
from kvhouse.replayer.stretches import ROW_SUMS, Steps

#: What is averaged over time.
LEVELS = ("running", "waiting", *LEDGER_CLASSES, "saved")
#: Steps after which what was noted of them is summed up.
_CHUNK = 1 << 15
#: What is noted of an interval, in this order, beside its beginning and its seconds.
_NOTED = (
    *("position", "index", "tokens", "running", "waiting", "preempted"),
    *("total", *LEDGER_CLASSES, "saved"),
)
#: The index of a wait, which is no step.
_WAIT = -1

#: One array for each attribute of intervals.
Columns = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of time in which nothing changes: one step, or a wait for the next arrival.

    Attributes:
        start: When it begins, in seconds.
        seconds: How long it lasts.
        step: Index of the step's plan; None for a wait.
        tokens: Tokens computed.
        running: Requests that hold memory.
        waiting: Requests in the queue.
        preempted: Requests that lost their memory for this step.
        ledger: The pool, the step's tokens counted as used.
    """

    start: float
    seconds: float
    step: int | None
    tokens: int
    running: int
    waiting: int
    preempted: int
    ledger: Ledger


class Intervals(Sequence[Interval]):
    """The intervals of a drive, one after the other without gaps.

    What is asked of them as a whole is summed up as they come and needs no memory for each. The
    intervals themselves can be looked at where they are kept.

    Attributes:
        taken: Intervals so far, those included whose place was taken and who come later.
    """

    def __init__(self, intervals: Iterable[Interval] = (), *, keep: bool = True) -> None:
        """Args: intervals: To begin with. keep: Whether the intervals can be looked at later."""
        self.taken = 0
        self._keep = keep
        self._tokens = self._preempted = self._steps = 0
        self._peaks = dict.fromkeys(LEVELS, 0)
        self._seconds = ExactSum()
        self._fragmented = ExactSum()
        self._areas = {name: ExactSum() for name in LEVELS}
        self._kept: list[Columns] = []
        self._noted, self._starts, self._spans = array("q"), array("d"), array("d")
        for interval in intervals:
            self.add(interval)

    @classmethod
    def of(cls, intervals: Sequence[Interval]) -> Intervals:
        """The same intervals with their sums."""
        return intervals if isinstance(intervals, cls) else cls(intervals)

    def add(self, interval: Interval) -> None:
        """Add one interval."""
        ledger = interval.ledger
        self._starts.append(interval.start)
        self._spans.append(interval.seconds)
        index = _WAIT if interval.step is None else interval.step
        counts = interval.tokens, interval.running, interval.waiting, interval.preempted
        self._noted.extend((self.taken, index, *counts, *_BYTES(ledger)))
        self.taken += 1
        if len(self._spans) >= _CHUNK:
            self._sum_up()

    def add_steps(self, steps: Steps, memory: KVMemory) -> None:
        """Add steps whose places among the others are theirs already."""
        self._take_in(_columns_of(steps, memory))

    @property
    def tokens(self) -> int:
        """Tokens computed in all."""
        self._sum_up()
        return self._tokens

    @property
    def preempted(self) -> int:
        """How often a request lost its memory."""
        self._sum_up()
        return self._preempted

    @property
    def steps(self) -> int:
        """Intervals that are steps."""
        self._sum_up()
        return self._steps

    def peak(self, name: str) -> int:
        """The most of one of ``LEVELS`` at once."""
        self._sum_up()
        return self._peaks[name]

    @property
    def seconds(self) -> float:
        """How long they last together."""
        self._sum_up()
        return self._seconds.value

    @property
    def fragmented_seconds(self) -> float:
        """How long free blocks were of no use to the head of the queue."""
        self._sum_up()
        return self._fragmented.value

    def mean(self, name: str) -> float:
        """The mean of one of ``LEVELS``, weighted by time; 0 when no time passed."""
        seconds = self.seconds
        return self._areas[name].value / seconds if seconds else 0.0

    def columns(self) -> Columns:
        """The intervals as arrays, by the names of their attributes and the ledger's classes.

        Raises:
            RuntimeError: They were not kept.
        """
        self._sum_up()
        if not self._keep:
            raise RuntimeError("the intervals of this drive were summed up and not kept")
        if len(self._kept) > 1:
            order = np.argsort(np.concatenate([part["position"] for part in self._kept]))
            whole = {
                name: np.concatenate([part[name] for part in self._kept])[order]
                for name in self._kept[0]
            }
            self._kept = [whole]
        return self._kept[0] if self._kept else _NOTHING

    def __len__(self) -> int:
        return len(self.columns()["seconds"])

    @overload
    def __getitem__(self, index: int) -> Interval: ...

    @overload
    def __getitem__(self, index: slice) -> list[Interval]: ...

    def __getitem__(self, index: int | slice) -> Interval | list[Interval]:
        columns = self.columns()
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]
        value = {name: column[place].item() for name, column in columns.items()}
        ledger = Ledger(**{name: value[name] for name in ("total", *LEDGER_CLASSES, "saved")})
        step = None if value["index"] == _WAIT else value["index"]
        start = value["start"]
        for span in columns["seconds"][place - value["later"] : place].tolist():
            start += span  # as the clock went
        return Interval(
            start=start,
            seconds=value["seconds"],
            step=step,
            tokens=value["tokens"],
            running=value["running"],
            waiting=value["waiting"],
            preempted=value["preempted"],
            ledger=ledger,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def _sum_up(self) -> None:
        """Bring everything that was noted of single intervals into the sums."""
        if self._spans:
            noted = np.frombuffer(self._noted, dtype=np.int64).reshape(-1, len(_NOTED))
            columns: Columns = dict(zip(_NOTED, noted.T, strict=True))
            columns["later"] = np.zeros(len(noted), dtype=np.int64)
            columns["start"] = np.frombuffer(self._starts)
            columns["seconds"] = np.frombuffer(self._spans)
            self._noted, self._starts, self._spans = array("q"), array("d"), array("d")
            self._take_in(columns)

    def _take_in(self, columns: Columns) -> None:
        spans = columns["seconds"]
        self._tokens += int(columns["tokens"].sum())
        self._preempted += int(columns["preempted"].sum())
        self._steps += int(np.count_nonzero(columns["index"] != _WAIT))
        self._seconds.add(spans)
        self._fragmented.add(spans[columns["external"] > 0])
        for name in LEVELS:
            peak = int(columns[name].max())
            self._peaks[name] = max(self._peaks[name], peak)
            if peak:
                self._areas[name].add(spans * columns[name])
        if self._keep:
            self._kept.append(columns)


def _columns_of(steps: Steps, memory: KVMemory) -> Columns:
    """One value for each step.

    ``start`` is the stretch's, and ``later`` says how many of its steps went before.
    """
    layout, later, begun = memory.layout, steps.later, steps.begun
    of = {name: steps.spread(name) for name in steps.table if name not in ROW_SUMS}
    more = of["later"] + of["chunk"]
    entry, block, slot = layout.bytes_per_token, layout.block_bytes, layout.slot_bytes
    written = (of["written"] + later * more) * entry
    unheld = steps.free(len(layout.groups)) * block + slot * of["free_slots"]
    cached = steps.cached * block if len(steps.cached) else np.zeros_like(later)
    passed = of["passed"] + later * of["passing"]
    used = written - passed + slot * of["running"] - of["in_shared"]
    reserved = (of["room"] + begun * layout.block_size - steps.excess) * entry - written
    reserved -= of["short"]
    shared, external = of["shared"] * block, of["external"] * block
    return {
        "position": of["position"] + later,
        "start": steps.start,
        "later": later,
        "seconds": steps.seconds,
        "index": of["index"] + later,
        "tokens": np.where(later > 0, more, of["tokens"]),
        "running": of["running"],
        "waiting": of["waiting"],
        "preempted": np.zeros_like(cached),
        "total": np.full_like(cached, memory.total_bytes),
        "used": used,
        "shared": shared,
        "reserved": reserved,
        "internal": memory.total_bytes - unheld - used - shared - reserved,
        "external": external,
        "cached": cached,
        "free": unheld - cached - external,
        "saved": of["saved"] * block,
    }


_BYTES = attrgetter("total", *LEDGER_CLASSES, "saved")
_NOTHING: Columns = {
    **dict.fromkeys((*_NOTED, "later"), np.empty(0, dtype=np.int64)),
    **dict.fromkeys(("start", "seconds"), np.empty(0)),
}
