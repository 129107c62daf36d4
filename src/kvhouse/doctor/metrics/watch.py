"""Two scrapes of a server as rates, and a server watched until someone has seen enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvhouse.doctor.log import Log
from kvhouse.doctor.metrics.read import Collected
from kvhouse.doctor.metrics.scrape import Scrape, scrapes
from kvhouse.web.address import FetchError


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll gave.

    Attributes:
        number: From 1.
        seconds: Since the poll before that was answered; 0 for the first.
        gauges: What is so now: requests that run and wait, the share of the pool in use.
        grown: What totals grew by since the poll before; nothing for the first.
        problem: Why there was no answer; empty where there was one.
        fits: Requests of full length that the pool holds at once; None where it is not known.
    """

    number: int
    seconds: float = 0.0
    gauges: dict[str, float] = field(default_factory=dict)
    grown: dict[str, float] = field(default_factory=dict)
    problem: str = ""
    fits: float | None = None

    def rate(self, name: str) -> float | None:
        """A total's growth per second; None where it is not known."""
        grown = self.grown.get(name)
        return None if grown is None or self.seconds <= 0 else grown / self.seconds

    @property
    def hit_rate(self) -> float | None:
        """The share of prompt tokens found in the cache since the poll before."""
        asked = self.grown.get("queried_total") or self.grown.get("prompt_total")
        hit = self.grown.get("hit_total")
        return None if not asked or hit is None else min(1.0, hit / asked)

    def to_dict(self) -> dict[str, Any]:
        """The poll as plain values with stable keys; what is not known is null."""
        return {
            "poll": self.number,
            "seconds": round(self.seconds, 3),
            "running": self.gauges.get("running"),
            "fits": self.fits,
            "waiting": self.gauges.get("waiting"),
            "usage": self.gauges.get("usage_share"),
            "preemptions_per_second": self.rate("preempted_total"),
            "hit_rate": self.hit_rate,
            "prompt_tokens_per_second": self.rate("prompt_total"),
            "generated_tokens_per_second": self.rate("generated_total"),
            "finished_per_second": self.rate("finished_total"),
            "problem": self.problem,
        }


@dataclass(slots=True)
class Watched:
    """A server, watched.

    Attributes:
        collected: The scrapes so far.
        polls: How many polls there were, answered or not.
        silent: How many had no answer, or one that is not known here.
        size: Bytes of the answers.
    """

    collected: Collected = field(default_factory=Collected)
    polls: int = 0
    silent: int = 0
    size: int = 0
    _at: float | None = None

    def take(self, content: bytes, at: float) -> Poll:
        """Take in an answer.

        Args:
            content: The answer.
            at: When it came, in seconds of a clock that never goes back.
        """
        self.polls += 1
        self.size += len(content)
        found = next(scrapes(content.split(b"\n")), Scrape())
        if not found.engine:
            return self._without("answers with no figure that is known here")
        grown = self.collected.take(found)
        seconds = 0.0 if self._at is None else at - self._at
        known = {} if self._at is None else grown
        self._at = at
        gauges = {name: value for name, (value, _) in found.gauges().items()}
        fits = self.collected.log.facts.number("max_concurrency")
        return Poll(self.polls, seconds, gauges, known, fits=fits)

    def missed(self, problem: str) -> Poll:
        """Take in that there was no answer."""
        self.polls += 1
        return self._without(problem)

    def _without(self, problem: str) -> Poll:
        self.silent += 1
        return Poll(self.polls, problem=problem)

    def log(self) -> Log:
        """All that was seen, as a log."""
        log = self.collected.finish()
        log.source, log.size = "metrics", self.size
        log.runs += self.collected.restarts
        return log


def polls(
    ask: Callable[[], bytes],
    clock: Callable[[], float],
    wait: Callable[[], None],
    watched: Watched,
) -> Iterator[Poll]:
    """Poll after poll, without an end.

    Args:
        ask: Fetches an answer.
        clock: Seconds, never going back.
        wait: Waits until the next poll is due.
        watched: What takes in the answers.

    Raises:
        FetchError: The first poll has no answer; later ones are reported and tried again.
    """
    yield watched.take(ask(), clock())
    while True:
        wait()
        try:
            content = ask()
        except FetchError as error:
            yield watched.missed(str(error))
        else:
            yield watched.take(content, clock())
