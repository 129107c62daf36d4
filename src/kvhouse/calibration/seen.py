"""What a bench saw of a server's steps: who decoded beside whom, and which prompts were alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import numpy as np

from kvhouse.bench.stored import StoredLoad
from kvhouse.costs.fitted import Parts
from kvhouse.errors import KvhouseError

Array = np.ndarray[Any, np.dtype[np.float64]]

#: Requests whose phases are taken at most, spread evenly over the load.
MOST_PHASES = 2000
#: A decode phase of fewer steps says little of a step.
LEAST_STEPS = 7
#: Share of a decode phase's steps that may have computed prompts too, for its median step to be
#: one that did not.
_MIXED = 0.4
#: By what factor the mean time of a token may differ from the median one. A longer mean is of a
#: phase that others' prompts stretched, unevenly; a shorter one of tokens that came several at a
#: time.
_UNEVEN = 1.5


@dataclass(frozen=True, slots=True)
class Span:
    """A kind of step as it was seen.

    Attributes:
        seconds: How long all took that it stands for.
        steps: The tokens in each of these.
        rows: Rows that decoded, on average.
        decode_bytes: Keys and values that they read.
        chunk_bytes: The same of chunks of prompts.
        chunk_flops: FLOPs of attention of those.
    """

    seconds: float
    steps: tuple[float, ...]
    rows: float = 0.0
    decode_bytes: float = 0.0
    chunk_bytes: float = 0.0
    chunk_flops: float = 0.0


class Seen:
    """One load as it was seen from outside.

    Args:
        load: Of a bench.
        parts: Takes the model's steps apart.
        token_budget: Tokens that the server computes in a step at most, as far as is known.

    Raises:
        KvhouseError: Nobody counted the prompts' tokens.
    """

    def __init__(self, load: StoredLoad, parts: Parts, token_budget: int) -> None:
        rows = [row for row in load.rows if row["first_token"] is not None]
        if load.figures["prompts"] != "ids" and any(row["prompt_tokens"] is None for row in rows):
            raise KvhouseError(
                "prompts were given as text and the server counted no tokens of them, so nobody "
                "knows how long they were"
            )
        self._parts, self._budget = parts, token_budget
        self._whole = np.array([row["error"] is None for row in rows], dtype=bool)
        self._sent = _column(row["sent"] for row in rows)
        self._first = _column(row["first_token"] for row in rows)
        self._last = _column(row["last_token"] for row in rows)
        self._ended = _column(inf if row["ended"] is None else row["ended"] for row in rows)
        self._steps = _column(max(0, row["output_tokens"] - 1) for row in rows)
        self._gap = _column(row["between_tokens_p50"] or 0.0 for row in rows)
        self._prompt = [row["prompt_tokens"] or row["asked_prompt_tokens"] for row in rows]
        self._cached = [row["cached_tokens"] or 0 for row in rows]
        spans = self._last - self._first
        self._decoded = (spans > 0) & (self._steps > 0)
        self._rate = np.divide(self._steps, spans, out=np.zeros(len(rows)), where=self._decoded)

    def decoding(self) -> Iterator[Span]:
        """Of each request that decoded long enough, its median step.

        The median is that of a step in which nobody's prompt was computed, so requests are left
        out for which such steps may have been too few, and those whose tokens came unevenly.
        """
        share = self._gap * self._rate
        even = self._decoded & (share <= _UNEVEN) & (share * _UNEVEN >= 1)
        enough = even & self._whole & (self._steps >= LEAST_STEPS)
        for request in _spread(np.flatnonzero(enough)):
            if self._mixed(request) <= _MIXED * self._steps[request]:
                yield self._phase(request)

    def alone(self) -> Iterator[Span]:
        """Of each request that found the server idle and stayed alone, its prompt."""
        requests = np.flatnonzero(self._whole & (self._first > self._sent))
        for request in _spread([int(one) for one in requests if self._is_alone(int(one))]):
            yield self._chunks(request)

    def _mixed(self, request: int) -> int:
        """At most so many of its steps computed others' prompts too."""
        begin, end = self._first[request], self._last[request]
        came = np.flatnonzero((self._first > begin) & (self._sent < end))
        return sum(ceil(self._prompt[other] / self._budget) for other in came)

    def _phase(self, request: int) -> Span:
        """Its median step.

        Its steps are even, and in each of them every decoding request has a row, so the share of
        the time for which another decodes is that of the steps.
        """
        begin, end = self._first[request], self._last[request]
        beside = np.flatnonzero(self._decoded & (self._first < end) & (self._last > begin))
        since = np.maximum(self._first[beside], begin)
        until = np.minimum(self._last[beside], end)
        shares = (until - since) / (end - begin)
        read = 0.0
        for other, share, middle in zip(beside, shares, (since + until) / 2, strict=True):
            given = self._rate[other] * (middle - self._first[other])
            position = self._prompt[other] + round(float(given))
            read += float(share) * self._parts.of([(position, 1, True)]).decode_bytes
        rows = float(shares.sum())
        return Span(float(self._gap[request]), (rows,), rows, read)

    def _is_alone(self, request: int) -> bool:
        beside = (self._sent < self._first[request]) & (self._ended > self._sent[request])
        return int(beside.sum()) == 1

    def _chunks(self, request: int) -> Span:
        """The steps of its prompt, as many as the budget makes of it."""
        tokens = self._prompt[request]
        found = min(self._cached[request], tokens - 1)
        begins = range(found, tokens, self._budget)
        rows = [(at, min(self._budget, tokens - at), False) for at in begins]
        parts = self._parts.of(rows)
        return Span(
            float(self._first[request] - self._sent[request]),
            tuple(float(count) for _, count, _ in rows),
            0.0,
            parts.decode_bytes,
            parts.chunk_bytes,
            parts.chunk_flops,
        )


def _column(values: Iterator[float]) -> Array:
    return np.array(list(values), dtype=np.float64)


def _spread(requests: Sequence[int] | np.ndarray[Any, Any]) -> list[int]:
    """At most ``MOST_PHASES`` of them, evenly."""
    apart = max(1, ceil(len(requests) / MOST_PHASES))
    return [int(one) for one in requests[::apart]]
