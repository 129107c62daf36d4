"""What became of each request of a load."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kvhouse.bench.target import Usage
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.trace_request import TraceRequest


@dataclass(slots=True)
class LoadRecord:
    """One request. Times are seconds since the first arrival.

    Attributes:
        index: Its place in the trace.
        request: What the trace asks.
        arrival: When it was to be sent.
        sent: When it was.
        first_token: When its first token came.
        last_token: When its last one did.
        ended: When it ended, well or not; None while it is under way.
        output_tokens: Tokens that it got.
        usage: The target's own count; None where it gave none.
        gaps: Seconds between one arrival of tokens and the next.
        error: What kind of failure it ended in, if it did.
        reason: That failure in words.
    """

    index: int
    request: TraceRequest
    arrival: float
    sent: float = 0.0
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    output_tokens: int = 0
    usage: Usage | None = None
    gaps: array[float] = field(default_factory=lambda: array("d"))
    error: str | None = None
    reason: str | None = None

    @property
    def finished(self) -> bool:
        """Whether its answer is whole."""
        return self.ended is not None and self.error is None

    def take(self, tokens: int, now: float) -> None:
        """Tokens came."""
        if self.last_token is None:
            self.first_token = now
        else:
            self.gaps.append(now - self.last_token)
        self.last_token = now
        self.output_tokens += tokens

    def count(self, usage: Usage) -> None:
        """The target's count goes before that of what came."""
        self.usage = usage
        self.output_tokens = usage.output_tokens

    def finish(self) -> None:
        """The answer is whole; one without a token is none."""
        if self.first_token is None:
            self.fail("malformed", "an answer without a token", self.sent)
        else:
            self.ended = self.last_token

    def fail(self, kind: str, reason: str, now: float) -> None:
        """It came to nothing."""
        self.error, self.reason, self.ended = kind, reason, now

    def timed(self) -> RequestRecord:
        """The same as a drive's record, by which an SLO is judged."""
        asked = self.request
        record = RequestRecord(self.index, asked.prompt_tokens, asked.output_tokens, self.arrival)
        record.rejection, record.generated = self.reason, self.output_tokens
        if self.finished:
            record.first_token, record.finished = self.first_token, self.ended
        return record

    @staticmethod
    def columns() -> tuple[str, ...]:
        """Names of a table's columns."""
        return tuple(LoadRecord(0, TraceRequest(0.0, 1, 1), 0.0).row())

    def row(self) -> dict[str, Any]:
        """Its columns in a table."""
        usage = self.usage
        return {
            "index": self.index,
            "arrival": self.arrival,
            "sent": self.sent,
            "first_token": self.first_token,
            "last_token": self.last_token,
            "ended": self.ended,
            "asked_prompt_tokens": self.request.prompt_tokens,
            "asked_output_tokens": self.request.output_tokens,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "output_tokens": self.output_tokens,
            "cached_tokens": usage.cached_tokens if usage else None,
            "between_tokens_p50": median(self.gaps) if self.gaps else None,
            "error": self.error,
            "reason": self.reason,
        }
