"""When a request's tokens came."""

from __future__ import annotations

import time

from kvhouse.engine import Token
from kvhouse.server.metrics import Metrics


class Timing:
    """Times one request from its arrival on, and tells the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._arrived = time.perf_counter()
        #: For each answer, when its first token came, and how many came since.
        self._first: dict[int, float] = {}
        self._more: dict[int, int] = {}

    @property
    def passed(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self._arrived

    def note(self, tokens: list[tuple[int, Token]], n: int) -> None:
        """Take note of the tokens of one step."""
        now = time.perf_counter()
        for place, token in tokens:
            answer = place * n + token.sample
            if answer in self._first:
                self._more[answer] += 1
            else:
                if not self._first:
                    self._metrics.first_token.observe(now - self._arrived)
                self._first[answer], self._more[answer] = now, 0
            if token.finish_reason is not None and (more := self._more[answer]):
                self._metrics.per_token.observe((now - self._first[answer]) / more)
