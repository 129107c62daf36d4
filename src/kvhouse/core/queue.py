"""The order in which requests are served, and the queue of those that wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from operator import attrgetter

from kvhouse.core.request import Request
from kvhouse.errors import KvhouseError

Order = Callable[[Request], tuple[int, ...]]

#: Who goes first, by name. Ties, and all of ``fcfs``, go by the number of submission.
ORDERS: dict[str, Order] = {
    "fcfs": lambda request: (0, request.id),
    "priority": lambda request: (request.priority, request.id),
    "shortest": lambda request: (request.prompt_tokens + request.max_new_tokens, request.id),
}

#: A request's place in the order that it was submitted under.
PLACE = attrgetter("place")


def put_in_order(request: Request, requests: list[Request]) -> None:
    """Insert a request at its place, which most of the time is the last."""
    if requests and requests[-1].place > request.place:
        insort(requests, request, key=PLACE)
    else:
        requests.append(request)


def get_order(name: str) -> Order:
    """The order of that name.

    Raises:
        KvhouseError: No such order; the message lists those there are.
    """
    try:
        return ORDERS[name]
    except KeyError:
        raise KvhouseError(f"unknown order {name!r}: choose one of {', '.join(ORDERS)}") from None


def place_of(request: Request, requests: list[Request]) -> int:
    """The index of a request among others in order."""
    return bisect_left(requests, request.place, key=PLACE)


class WaitingQueue:
    """Waiting requests; the head is the first in order."""

    def __init__(self) -> None:
        #: The next to be admitted; None where nobody waits.
        self.head: Request | None = None
        self._heap: list[tuple[int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        """Every request, the head first."""
        return (request for _, _, request in sorted(self._heap))

    def in_any_order(self) -> Iterator[Request]:
        """Every request, without the time that it takes to put them in order."""
        return (request for _, _, request in self._heap)

    def push(self, request: Request) -> None:
        """Add a request at its place in the order."""
        first, second = request.place
        heappush(self._heap, (first, second, request))
        self.head = self._heap[0][2]

    def pop(self) -> Request:
        """Take the head."""
        _, _, head = heappop(self._heap)
        self.head = self._heap[0][2] if self._heap else None
        return head

    def remove(self, request: Request) -> None:
        """Drop one, wherever it stands."""
        self._heap = [entry for entry in self._heap if entry[2] is not request]
        heapify(self._heap)
        self.head = self._heap[0][2] if self._heap else None
