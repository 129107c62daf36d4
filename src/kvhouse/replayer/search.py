"""One search over replays: what it must reach, what it tried, and where it was told to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvhouse.errors import KvhouseError
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.stop import Stop

#: Share of the requests that must meet the SLO, where nothing else is said.
DEFAULT_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Goal:
    """What a setting must reach.

    Attributes:
        slo: What requests must meet; without one, no request may be rejected or preempted.
        share: How many of them must.

    Raises:
        KvhouseError: ``share`` is not in (0, 1].
    """

    slo: SLO | None
    share: float = DEFAULT_SHARE

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise KvhouseError(f"SLO share {self.share}: give a share above 0 and up to 1")

    def reached(self, result: ReplayResult) -> bool:
        """Whether a replay reached it."""
        if result.goodput is None:
            return not result.rejections and not result.preemptions
        return result.goodput.share >= self.share


@dataclass(frozen=True, slots=True)
class Probe:
    """One replay of a search.

    Attributes:
        value: The factor on the rate, or the blocks of the pool.
        holds: Whether the goal was reached.
        share: Share of the requests that met the SLO; None without one.
        rejections: Requests that could never fit.
        preemptions: How often a request lost its memory.
    """

    value: float
    holds: bool
    share: float | None
    rejections: int
    preemptions: int


class SearchStopped(KvhouseError):
    """A search was told to stop before any setting had reached the goal."""


class _Stopped(Exception):
    pass


class Search:
    """Replays of one setup, remembered."""

    def __init__(
        self,
        at: Callable[[float], Setup],
        goal: Goal,
        on_ended: Callable[[RequestRecord], None] | None,
        stop: Stop | None,
    ) -> None:
        self._at, self._goal, self._on_ended = at, goal, on_ended
        self._stop = stop or Stop()
        self.probes: list[Probe] = []
        self.value = 0.0
        self.best: ReplayResult | None = None
        self.stopped = False

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """A block that ends where the search is told to stop."""
        try:
            yield
        except _Stopped:
            self.stopped = True

    def holds(self, value: float) -> bool:
        """Replay at ``value``; the latest result that held is kept."""
        if self._stop.asked:
            raise _Stopped
        drive = self._at(value).drive
        result = drive(slo=self._goal.slo, on_ended=self._on_ended, stop=self._stop)
        if result.partial:
            raise _Stopped
        holds = self._goal.reached(result)
        share = result.goodput.share if result.goodput else None
        self.probes.append(Probe(value, holds, share, len(result.rejections), result.preemptions))
        if holds:
            self.value, self.best = value, result
        return holds
