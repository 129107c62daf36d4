"""When requests reach the scheduler: by the clock, or at a given step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from kvhouse.replayer.trace_request import TraceRequest
from kvhouse.replayer.trace_table import TraceTable


class Arrivals(Protocol):
    """Requests still to come, in order."""

    def due(self, step: int, now: float) -> list[tuple[float, TraceRequest]]:
        """Take what has arrived by this step and this time, each with its time of arrival."""
        ...

    def next_moment(self, step: int, now: float) -> tuple[int, float] | None:
        """Step and time at which the next request arrives; None when all have."""
        ...


class TimedArrivals:
    """Each request at its time in the trace."""

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        in_order = isinstance(requests, TraceTable) and requests.in_order
        ordered = requests if in_order else sorted(requests, key=lambda request: request.arrival)
        self._coming = iter(ordered)  # a table makes each request as it is asked for
        self._next = next(self._coming, None)

    def due(self, step: int, now: float) -> list[tuple[float, TraceRequest]]:
        """Requests whose time has come."""
        del step
        arrived = []
        while self._next is not None and self._next.arrival <= now:
            arrived.append((self._next.arrival, self._next))
            self._next = next(self._coming, None)
        return arrived

    def next_moment(self, step: int, now: float) -> tuple[int, float] | None:
        """This step, at the next request's time."""
        del now
        return None if self._next is None else (step, self._next.arrival)


class SteppedArrivals:
    """Each request at a given step, whatever the clock says; it arrives when that step begins.

    So the plans do not depend on how long steps take, and two executors can be compared.
    """

    def __init__(self, requests: Iterable[tuple[int, TraceRequest]]) -> None:
        """Args: requests: Pairs of a step, counted from 0, and the request that arrives then."""
        self._coming = deque(sorted(requests, key=lambda pair: pair[0]))

    def due(self, step: int, now: float) -> list[tuple[float, TraceRequest]]:
        """Requests whose step has come."""
        arrived = []
        while self._coming and self._coming[0][0] <= step:
            arrived.append((now, self._coming.popleft()[1]))
        return arrived

    def next_moment(self, step: int, now: float) -> tuple[int, float] | None:
        """The next request's step, now."""
        del step
        return (self._coming[0][0], now) if self._coming else None


def backlog(requests: Iterable[TraceRequest]) -> SteppedArrivals:
    """All requests before the first step, so that memory alone decides who is admitted."""
    return SteppedArrivals((0, request) for request in requests)
