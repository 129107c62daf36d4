"""Which part of a trace is taken, and how it is stretched."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from kvhouse.errors import TraceError
from kvhouse.replayer.randomness import Uniforms
from kvhouse.replayer.trace_request import MOST_SECONDS, MOST_TOKENS, TraceRequest

#: Rates and lengths are not stretched further.
MOST_FACTOR = 10**9


@dataclass(slots=True)
class Tally:
    """What a reading came across.

    Attributes:
        cut: Requests that were cut to ``max_length``.
        skipped: Lines that hold no request to be served, such as failed ones of an access log.
    """

    cut: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """What is taken of a trace, in this order of the attributes.

    Attributes:
        start: Leave out what arrives earlier, in seconds of the trace; this becomes time 0.
        duration: Leave out what arrives so many seconds after ``start`` or later.
        sample: Take each request with this probability, whatever became of the others.
        seed: Decides which these are.
        limit: Take the first so many of these requests only.
        scale_rate: Let requests arrive so many times as fast: arrivals are divided by it.
        scale_lengths: Multiply prompt and output lengths with this, round half up, at least 1. Hash
            ids then stand for blocks of as many tokens less or more.
        max_length: Cut requests longer than this in all, prompt first but never below 1 token. By
            default nothing is cut.
    """

    start: float = 0.0
    duration: float | None = None
    sample: float = 1.0
    seed: int = 0
    limit: int | None = None
    scale_rate: float = 1.0
    scale_lengths: float = 1.0
    max_length: int | None = None

    def __post_init__(self) -> None:
        """Raise ``TraceError`` for what is out of range."""
        if not (math.isfinite(self.start) and self.start >= 0):
            raise TraceError(f"start {self.start}: give seconds from 0 on")
        if self.duration is not None and not (math.isfinite(self.duration) and self.duration > 0):
            raise TraceError(f"duration {self.duration}: give seconds above 0")
        if not 0 < self.sample <= 1:
            raise TraceError(f"sample {self.sample}: give a share above 0 and up to 1")
        if self.seed < 0:
            raise TraceError(f"sample seed {self.seed}: give a whole number from 0 on")
        if self.limit is not None and self.limit < 1:
            raise TraceError(f"limit {self.limit}: read at least 1 request")
        for name in ("scale_rate", "scale_lengths"):
            factor = getattr(self, name)
            if not 0 < factor <= MOST_FACTOR:
                raise TraceError(
                    f"{name} {factor}: give a finite factor above 0, at most {MOST_FACTOR:,}"
                )
        if self.max_length is not None and self.max_length < 2:
            raise TraceError(f"cut to {self.max_length}: a request has at least 2 tokens")

    def of(self, requests: Iterable[TraceRequest], tally: Tally) -> Iterator[TraceRequest]:
        """What is taken of ``requests``, which are in the order of arrival; ``tally`` counts."""
        taken = requests
        if self.start or self.duration is not None:
            taken = self._window(taken)
        if self.sample < 1:
            taken = self._sampled(taken)
        for request in taken if self.limit is None else islice(taken, min(self.limit, sys.maxsize)):
            scaled = self._scaled(request)
            fitting = scaled if self.max_length is None else _cut(scaled, self.max_length)
            tally.cut += fitting is not scaled
            yield fitting

    def _window(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        end = math.inf if self.duration is None else self.start + self.duration
        for request in requests:
            if request.arrival >= end:
                return
            if request.arrival >= self.start:
                yield request._replace(arrival=request.arrival - self.start)

    def _sampled(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        chance = Uniforms(self.seed, "sample")
        return (request for request in requests if chance.draw() < self.sample)

    def _scaled(self, request: TraceRequest) -> TraceRequest:
        if self.scale_rate != 1:
            request = request._replace(arrival=request.arrival / self.scale_rate)
        if request.arrival > MOST_SECONDS:
            which = "" if self.scale_rate == 1 else f"scale_rate {self.scale_rate}: "
            raise TraceError(
                f"{which}a request arrives after {request.arrival:.3g} seconds, which is later "
                f"than {MOST_SECONDS:.0e}: give a higher rate"
            )
        return request if self.scale_lengths == 1 else self._with_scaled_lengths(request)

    def _with_scaled_lengths(self, request: TraceRequest) -> TraceRequest:
        factor = self.scale_lengths

        def scaled(tokens: int) -> int:
            if tokens * factor > MOST_TOKENS:
                reason = f"gives over {MOST_TOKENS:,} tokens a request"
                raise TraceError(f"scale_lengths {factor}: {reason}")
            return max(1, math.floor(tokens * factor + 0.5)) if tokens else 0

        named = len(request.hash_ids) > request.prompt_blocks  # the output's blocks as well
        result = request._replace(
            prompt_tokens=scaled(request.prompt_tokens),
            output_tokens=scaled(request.output_tokens),
            prefix_tokens=scaled(request.prefix_tokens),
            cached_tokens=scaled(request.cached_tokens),
            hash_block=scaled(request.hash_block) if request.hash_ids else request.hash_block,
        )
        if not request.hash_ids:
            return result
        tokens = result.prompt_tokens + (result.output_tokens if named else 0)
        return result._replace(hash_ids=request.hash_ids[: -(-tokens // result.hash_block)])


def _cut(request: TraceRequest, max_length: int) -> TraceRequest:
    """The request itself where it fits."""
    output = min(request.output_tokens, max_length - 1)
    prompt = min(request.prompt_tokens, max_length - output)
    if (prompt, output) == (request.prompt_tokens, request.output_tokens):
        return request
    # After a shorter prompt the output's blocks are not those that were named.
    named = prompt if prompt < request.prompt_tokens else prompt + output
    return request._replace(
        prompt_tokens=prompt,
        output_tokens=output,
        hash_ids=request.hash_ids[: -(-named // request.hash_block)],
        prefix_tokens=min(request.prefix_tokens, prompt),
        cached_tokens=min(request.cached_tokens, prompt),
    )
