"""How a drive passed its time: stretches in which nothing changes, and exact sums over them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from kvhouse.core.leap import Stretch
from kvhouse.core.ledger import LEDGER_CLASSES, Ledger
from kvhouse.core.memory import KVMemory
from kvhouse.replayer.exact import ExactSum

#: What is averaged over time.
LEVELS = ("running", "waiting", *LEDGER_CLASSES, "saved")
#: Steps after which what was noted of them is summed up.
_CHUNK = 1 << 15
#: What is noted once for steps in a row; ``more_`` is what each later step adds.
_PIECE = (
    *("steps", "index", "tokens", "more_tokens", "running", "waiting", "preempted"),
    *("used", "more_used", "written", "room_bytes", "free_bytes", "unheld"),
    *("external", "shared", "saved", "total"),
)
#: The index of a wait, which is no step.
_WAIT = -1

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


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
    """

    def __init__(self, intervals: Iterable[Interval] = (), *, keep: bool = True) -> None:
        """Args: intervals: To begin with. keep: Whether the intervals can be looked at later."""
        self._keep = keep
        self._tokens = self._preempted = self._steps = 0
        self._peaks = dict.fromkeys(LEVELS, 0)
        self._seconds = ExactSum()
        self._fragmented = ExactSum()
        self._areas = {name: ExactSum() for name in LEVELS}
        self._kept: list[dict[str, Ints | Floats]] = []
        self._renew()
        for interval in intervals:
            self.add(interval)

    @classmethod
    def of(cls, intervals: Sequence[Interval]) -> Intervals:
        """The same intervals with their sums."""
        return intervals if isinstance(intervals, cls) else cls(intervals)

    def _renew(self) -> None:
        self._pieces, self._starts, self._spans = array("q"), array("d"), array("d")
        self._free, self._room, self._cached = array("q"), array("q"), array("q")

    def add(self, interval: Interval) -> None:
        """Add one interval."""
        ledger = interval.ledger
        self._starts.append(interval.start)
        self._spans.append(interval.seconds)
        self._room.append(ledger.reserved)
        self._free.append(ledger.free + ledger.cached + ledger.external)
        self._cached.append(ledger.cached)
        index = _WAIT if interval.step is None else interval.step
        self._pieces.extend(
            (
                *(1, index, interval.tokens, 0, interval.running, interval.waiting),
                *(interval.preempted, ledger.used, 0, 0, 1, 1, 0),
                *(ledger.external, ledger.shared, ledger.saved, ledger.total),
            )
        )
        if len(self._spans) >= _CHUNK:
            self._sum_up()

    def add_stretch(
        self, stretch: Stretch, memory: KVMemory, start: float, seconds: list[float]
    ) -> None:
        """Add the steps of a stretch that were taken, of so many seconds each."""
        layout, steps = memory.layout, len(seconds)
        block, slot = layout.block_bytes, layout.slot_bytes
        entry = layout.bytes_per_token
        written = entry * stretch.written
        self._starts.append(start)
        self._spans.extend(seconds)
        self._room.extend(stretch.room)
        self._free.extend(stretch.free)
        if stretch.cached:
            self._cached.extend([blocks * block for blocks in stretch.cached])
        else:
            self._cached.frombytes(bytes(self._cached.itemsize * steps))
        self._pieces.extend(
            (
                *(steps, stretch.index, stretch.tokens, stretch.decoding),
                *(stretch.running, stretch.waiting, 0),
                *(written + slot * stretch.running - stretch.in_shared, entry * stretch.decoding),
                *(written, entry, block, slot * stretch.free_slots),
                *(stretch.external * block, stretch.shared * block, stretch.saved * block),
                memory.total_bytes,
            )
        )
        if len(self._spans) >= _CHUNK:
            self._sum_up()

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

    def columns(self) -> dict[str, Ints | Floats]:
        """The intervals as arrays, by the names of their attributes and the ledger's classes.

        Raises:
            RuntimeError: They were not kept.
        """
        self._sum_up()
        if not self._keep:
            raise RuntimeError("the intervals of this drive were summed up and not kept")
        if len(self._kept) > 1:
            whole = {
                name: np.concatenate([part[name] for part in self._kept]) for name in self._kept[0]
            }
            self._kept = [whole]
        return self._kept[0] if self._kept else _columns_of(*_NOTHING)

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
        ledger = Ledger(value["total"], *(value[name] for name in LEDGER_CLASSES), value["saved"])
        step = None if value["index"] == _WAIT else value["index"]
        start = value["start"]
        for span in columns["seconds"][place - value["later"] : place].tolist():
            start += span  # as the clock went
        counts = (value[name] for name in ("tokens", "running", "waiting", "preempted"))
        return Interval(start, value["seconds"], step, *counts, ledger)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def _sum_up(self) -> None:
        """Bring everything that was noted into the sums."""
        if not self._spans:
            return
        pieces = np.frombuffer(self._pieces, dtype=np.int64).reshape(-1, len(_PIECE))
        per_step = (
            np.frombuffer(column, dtype=np.int64)
            for column in (self._room, self._free, self._cached)
        )
        starts, spans = np.frombuffer(self._starts), np.frombuffer(self._spans)
        columns = _columns_of(pieces, starts, spans, *per_step)
        self._renew()
        self._tokens += int(columns["tokens"].sum())
        self._preempted += int(columns["preempted"].sum())
        self._steps += int(np.count_nonzero(columns["index"] != _WAIT))
        self._seconds.add(spans)
        self._fragmented.add(spans[columns["external"] > 0])
        for name in LEVELS:
            level = columns[name]
            peak = int(level.max())
            self._peaks[name] = max(self._peaks[name], peak)
            if peak:
                self._areas[name].add(spans * level)
        if self._keep:
            self._kept.append(columns)


def _columns_of(
    pieces: Ints, starts: Floats, spans: Floats, room: Ints, free: Ints, cached: Ints
) -> dict[str, Ints | Floats]:
    """One value for each interval, from what was noted of the pieces and of each interval.

    ``start`` is the piece's, and ``later`` says how many intervals of the piece went before.
    """
    steps = pieces[:, 0]
    firsts = np.cumsum(steps) - steps
    place = np.repeat(np.arange(len(steps)), steps)
    later = np.arange(len(spans)) - firsts[place]

    def of(name: str) -> Ints:
        return pieces[place, _PIECE.index(name)]

    growth = later * of("more_used")
    used, external, shared, total = of("used") + growth, of("external"), of("shared"), of("total")
    reserved = room * of("room_bytes") - of("written") - growth
    unheld = free * of("free_bytes") + of("unheld")
    index = of("index")
    return {
        "start": starts[place],
        "later": later,
        "seconds": spans,
        "index": index + later * (index != _WAIT),
        "tokens": np.where(later > 0, of("more_tokens"), of("tokens")),
        "running": of("running"),
        "waiting": of("waiting"),
        "preempted": of("preempted"),
        "total": total,
        "used": used,
        "shared": shared,
        "reserved": reserved,
        "internal": total - unheld - used - shared - reserved,
        "external": external,
        "cached": cached,
        "free": unheld - cached - external,
        "saved": of("saved"),
    }


_NOTHING = (
    np.empty((0, len(_PIECE)), dtype=np.int64),
    np.empty(0),
    np.empty(0),
    *(np.empty(0, dtype=np.int64),) * 3,
)
