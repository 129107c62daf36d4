"""What layers with a window still need of requests whose tokens are counted together."""

from __future__ import annotations

from heapq import heappop, heappush


class Seen:
    """Of each request that decodes, its computed tokens up to the most that the next one needs.

    Attributes:
        most: The most of one request: a window's tokens but for the next one itself.
        tokens: Of all requests together.
    """

    def __init__(self, window: int) -> None:
        self.most = window - 1
        self.tokens = 0
        #: Ids of the requests that have fewer than ``most``.
        self._growing: set[int] = set()
        #: When these have as many, and their ids; those that ended before are still there.
        self._full: list[tuple[int, int]] = []

    @property
    def growing(self) -> int:
        """What each tick adds to ``tokens``."""
        return len(self._growing)

    def add(self, request: int, computed: int, tick: int) -> None:
        """Count a request that computes its next token in ``tick``."""
        self.tokens += min(computed, self.most)
        if computed < self.most:
            self._growing.add(request)
            heappush(self._full, (tick + self.most - computed, request))

    def remove(self, request: int, computed: int) -> None:
        """Count a request no longer."""
        self.tokens -= min(computed, self.most)
        self._growing.discard(request)

    def until_full(self, tick: int) -> int:
        """Ticks after which fewer requests grow, from ``tick`` on; many where none does."""
        while self._full and self._full[0][1] not in self._growing:
            heappop(self._full)
        return self._full[0][0] - tick if self._full else 2**62

    def advance(self, ticks: int, now: int) -> None:
        """Count ticks, no more than ``until_full``, up to ``now``."""
        self.tokens += ticks * len(self._growing)
        while self._full and self._full[0][0] <= now:
            self._growing.discard(heappop(self._full)[1])
