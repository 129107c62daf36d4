"""A scheduler that leaps together with an executor that can tell the times of many steps."""

from __future__ import annotations

import numpy as np

from kvhouse.core.leap import Leaper
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler
from kvhouse.core.step import Executor
from kvhouse.core.stretch import Stretch
from kvhouse.replayer.executor import LeapingExecutor
from kvhouse.replayer.guard import EVERY, Guard
from kvhouse.replayer.intervals import Intervals
from kvhouse.replayer.stretches import Stretches

#: Steps after which the stretches so far are summed up and checked.
_CHUNK = 1 << 13
#: Bytes of a piece after which glibc keeps twice as many.
_LARGER = 1 << 24


class Leap:
    """Both of them, and what is noted of the stretches that they take."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: LeapingExecutor,
        intervals: Intervals,
        guard: Guard | None,
    ) -> None:
        self._line = executor.line
        self._leaper = Leaper(scheduler)
        self._executor = executor
        self._intervals = intervals
        self._guard = guard
        self._memory = scheduler.memory
        self._stretches = Stretches()
        self._taken = self._unsettled = 0
        _keep_freed_memory()
        #: See ``Leaper.written``.
        self.written = self._leaper.written

    def plan(self) -> Stretch | None:
        """Begin a stretch; None, and the scheduler as stepping left it, where that cannot be."""
        leaper = self._leaper
        stretch = leaper.plan() if leaper.inside or leaper.enter() else None
        if stretch is None:
            leaper.leave()
        return stretch

    def spend(self, now: float, until: float, most: int) -> tuple[list[float], float]:
        """How long each step of the planned stretch takes; see ``Line.spend``."""
        stretch = self._leaper.stretch
        line = self._line(stretch.decoding, stretch.before, stretch.rows, stretch.seen)
        if not stretch.rows or most == 1:
            return line.spend(now, until, most)
        seconds, now = line.spend(now, until, 1)
        if now < until:
            going_on = ((stretch.chunk_first, stretch.chunk, False),) if stretch.chunk else ()
            before = stretch.written - stretch.idle - stretch.chunk_first
            line = self._line(stretch.later, before, going_on, going_on=True)
            others, now = line.spend(now, until, most - 1)
            seconds += others
        return seconds, now

    def advance(self, start: float, seconds: list[float]) -> list[Request]:
        """Take the stretch's steps and return the requests that finished.

        Args:
            start: The clock before the stretch.
            seconds: How long each step takes.
        """
        leaper, intervals, steps = self._leaper, self._intervals, len(seconds)
        finished = leaper.advance(steps)
        self._stretches.add(leaper.stretch, intervals.taken, start, seconds)
        intervals.taken += steps
        self._taken += 1
        if self._guard and not self._taken % EVERY:
            self._guard.look_at_tables(leaper.stretch.index)
        self._unsettled += steps
        if self._unsettled >= _CHUNK:
            self.settle()
        return finished

    def leave(self) -> None:
        """Give the scheduler back, as stepping would have left it."""
        self._leaper.leave()

    def settle(self) -> None:
        """Sum up and check what was noted."""
        if self._unsettled:
            steps, self._stretches = self._stretches.steps(), Stretches()
            self._unsettled = 0
            self._executor.look_at(steps)
            if self._guard:
                self._guard.look_at(steps)
            self._intervals.add_steps(steps, self._memory)


def _keep_freed_memory() -> None:
    """Have the C library keep what one settling frees for the next.

    glibc gives freed memory back to the system at once until it has seen a larger piece freed
    (mallopt(3), M_MMAP_THRESHOLD). Taking the same pages anew each time took 50 ms of a replay's
    350 where that was measured. Elsewhere this does nothing.
    """
    np.empty(_LARGER, dtype=np.int8)  # which is never touched, and freed here


def leap_of(
    scheduler: Scheduler, executor: Executor, intervals: Intervals, guard: Guard | None
) -> Leap | None:
    """Both of them together, where they allow it."""
    if isinstance(executor, LeapingExecutor) and executor.leaps and Leaper.suits(scheduler):
        return Leap(scheduler, executor, intervals, guard)
    return None
