"""A scheduler that leaps together with an executor that can tell the times of many steps."""

from __future__ import annotations

from kvhouse.core.leap import Leaper, Stretch
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler
from kvhouse.core.step import Executor
from kvhouse.costs import Line
from kvhouse.replayer.executor import LeapingExecutor


class Leap:
    """Both of them."""

    def __init__(self, scheduler: Scheduler, executor: LeapingExecutor) -> None:
        self._leaper = Leaper(scheduler)
        self._executor = executor
        #: The times of a stretch's steps.
        self.line = executor.line
        self.settle = executor.settle

    def plan(self) -> Stretch | None:
        """Begin a stretch; None, and the scheduler as stepping left it, where that cannot be."""
        leaper = self._leaper
        stretch = leaper.plan() if leaper.enter() else None
        if stretch is None:
            leaper.leave()
        return stretch

    def advance(self, seconds: list[float]) -> list[Request]:
        """Take the stretch's steps, so long each, and return the requests that finished."""
        finished = self._leaper.advance(len(seconds))
        self._executor.taken(self._leaper.stretch, seconds)
        return finished


def leap_of(scheduler: Scheduler, executor: Executor) -> Leap | None:
    """Both of them together, where they allow it."""
    if isinstance(executor, LeapingExecutor) and executor.leaps and Leaper.suits(scheduler.memory):
        return Leap(scheduler, executor)
    return None
