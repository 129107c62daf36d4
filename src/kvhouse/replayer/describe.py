"""What a trace is like: its rate, its lengths, and how much of it repeats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kvhouse.replayer.trace_request import TraceRequest
from kvhouse.replayer.trace_select import Selection
from kvhouse.replayer.traces import TraceStream

#: A trace that is shorter has no rate.
LEAST_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens over all requests; percentiles are interpolated linearly, as numpy's ``linear``."""

    total: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: int

    @classmethod
    def of(cls, counted: Counter[int]) -> Lengths:
        """Of how often each length occurs; not empty."""
        total = sum(length * times for length, times in counted.items())
        ordered = sorted(counted.items())
        p50, p90, p99 = (_percentile(ordered, counted.total(), share) for share in (50, 90, 99))
        return cls(total, total / counted.total(), p50, p90, p99, ordered[-1][0])


@dataclass(frozen=True, slots=True)
class Repeats:
    """Prompt blocks with a hash id, and how many were in an earlier request of the same tenant.

    A cache that forgets nothing and counts in these blocks has the repeated ones.

    Attributes:
        hash_block: Tokens behind one hash id; None where they differ or there are none.
        prompt_blocks: Blocks of all prompts that have an id.
        distinct: Ids that occur, those of outputs included.
        repeated: Prompt blocks whose id an earlier request had.
        repeated_share: The same as a share of ``prompt_blocks``; None where there are none.
    """

    hash_block: int | None
    prompt_blocks: int
    distinct: int
    repeated: int
    repeated_share: float | None


@dataclass(frozen=True, slots=True)
class TraceFigures:
    """What ``kvhouse trace`` shows.

    Attributes:
        trace: The file, the bundled trace or the description.
        format: What it was found to be.
        selection: What was taken of it, and how it was stretched.
        requests: Requests taken.
        skipped: Lines of the file that hold no request to be served.
        cut: Requests that were cut to the maximum length.
        first_arrival: Seconds of the first arrival.
        duration_seconds: From the first arrival to the last.
        requests_per_second: Gaps over the duration; None where less than 1 ns passes.
        gap_cv: Coefficient of variation of the gaps between arrivals: 0 for constant ones, 1 for a
            Poisson process, more for bursts; None where less than 1 ns passes.
        prompt_tokens: Lengths of the prompts.
        output_tokens: Lengths of the outputs.
        request_tokens: Lengths of prompt and output together.
        cached_tokens: Prompt tokens that the server which wrote the trace said it had cached.
        tenants: Distinct tenants that are named.
        priorities: Distinct priorities.
        prefixes: Distinct prefix ids.
        repeated_prefix_tokens: Tokens of prefixes that an earlier request of the same tenant had.
        blocks: What the hash ids say.
    """

    trace: str
    format: str
    selection: Selection
    requests: int
    skipped: int
    cut: int
    first_arrival: float
    duration_seconds: float
    requests_per_second: float | None
    gap_cv: float | None
    prompt_tokens: Lengths
    output_tokens: Lengths
    request_tokens: Lengths
    cached_tokens: int
    tenants: int
    priorities: int
    prefixes: int
    repeated_prefix_tokens: int
    blocks: Repeats

    def to_dict(self) -> dict[str, Any]:
        """The same keys, nested, as plain values."""
        return asdict(self)


class Description:
    """Figures under way. It keeps each distinct length, prefix, tenant and hash id, no request."""

    def __init__(self) -> None:
        self._prompts: Counter[int] = Counter()
        self._outputs: Counter[int] = Counter()
        self._both: Counter[int] = Counter()
        self._first = self._last = 0.0
        self._gap_squares = 0.0
        self._cached = 0
        self._priorities: set[int] = set()
        self._blocks = _BlockCounts()
        self._prefixes = _PrefixCounts()

    def add(self, request: TraceRequest) -> None:
        """Take in the next request."""
        if not self._both:
            self._first = self._last = request.arrival
        self._gap_squares += (request.arrival - self._last) ** 2
        self._last = request.arrival
        self._prompts[request.prompt_tokens] += 1
        self._outputs[request.output_tokens] += 1
        self._both[request.prompt_tokens + request.output_tokens] += 1
        self._cached += request.cached_tokens
        self._priorities.add(request.priority)
        self._prefixes.add(request)
        if request.hash_ids:
            self._blocks.add(request)

    def figures(self, stream: TraceStream) -> TraceFigures:
        """The figures of all requests that ``stream`` gave; at least one."""
        requests, duration = self._both.total(), self._last - self._first
        timed = duration >= LEAST_SECONDS
        cv = None
        if timed:
            mean = duration / (requests - 1)
            variance = self._gap_squares / (requests - 1) - mean * mean
            cv = math.sqrt(max(variance, 0.0)) / mean
        return TraceFigures(
            trace=stream.name,
            format=stream.format,
            selection=stream.selection,
            requests=requests,
            skipped=stream.tally.skipped,
            cut=stream.tally.cut,
            first_arrival=self._first,
            duration_seconds=duration,
            requests_per_second=(requests - 1) / duration if timed else None,
            gap_cv=cv,
            prompt_tokens=Lengths.of(self._prompts),
            output_tokens=Lengths.of(self._outputs),
            request_tokens=Lengths.of(self._both),
            cached_tokens=self._cached,
            tenants=len(self._prefixes.tenants),
            priorities=len(self._priorities),
            prefixes=len(self._prefixes.names),
            repeated_prefix_tokens=self._prefixes.repeated,
            blocks=self._blocks.repeats(),
        )


def describe(stream: TraceStream) -> TraceFigures:
    """Read a trace once and say what it is like.

    Raises:
        TraceError: The trace cannot be read, or holds no request.
    """
    description = Description()
    for request in stream:
        description.add(request)
    return description.figures(stream)


class _Ids:
    """A set of hash ids, most of which have neighbours in it: 64 of them share a word of bits."""

    def __init__(self) -> None:
        self._words: dict[int, int] = {}

    def __contains__(self, identity: int) -> bool:
        return bool(self._words.get(identity >> 6, 0) >> (identity & 63) & 1)

    def __len__(self) -> int:
        return sum(word.bit_count() for word in self._words.values())

    def add(self, identities: Iterable[int]) -> None:
        words = self._words
        for identity in identities:
            place = identity >> 6
            words[place] = words.get(place, 0) | 1 << (identity & 63)

    def update(self, other: _Ids) -> None:
        for place, word in other._words.items():
            self._words[place] = self._words.get(place, 0) | word


class _BlockCounts:
    def __init__(self) -> None:
        self._seen: dict[str | None, _Ids] = {}
        self._sizes: set[int] = set()
        self._blocks = self._repeated = 0

    def add(self, request: TraceRequest) -> None:
        seen = self._seen.setdefault(request.tenant, _Ids())
        ids = request.hash_ids[: request.prompt_blocks]
        self._blocks += len(ids)
        self._repeated += sum(identity in seen for identity in ids)
        seen.add(request.hash_ids)
        self._sizes.add(request.hash_block)

    def repeats(self) -> Repeats:
        size = next(iter(self._sizes)) if len(self._sizes) == 1 else None
        share = self._repeated / self._blocks if self._blocks else None
        distinct = _Ids()
        for seen in self._seen.values():
            distinct.update(seen)
        return Repeats(size, self._blocks, len(distinct), self._repeated, share)


class _PrefixCounts:
    def __init__(self) -> None:
        self._longest: dict[tuple[str | None, str], int] = {}
        self.names: set[str] = set()
        self.tenants: set[str] = set()
        self.repeated = 0

    def add(self, request: TraceRequest) -> None:
        if request.tenant is not None:
            self.tenants.add(request.tenant)
        if request.prefix_id is None:
            return
        self.names.add(request.prefix_id)
        key = (request.tenant, request.prefix_id)
        known = self._longest.get(key, 0)
        self.repeated += min(known, request.prefix_tokens)
        self._longest[key] = max(known, request.prefix_tokens)


def _percentile(ordered: list[tuple[int, int]], count: int, percent: int) -> float:
    """Of values with how often each occurs, in order."""
    rank, part = divmod((count - 1) * percent, 100)
    below = 0
    for index, (value, times) in enumerate(ordered):
        below += times
        if rank < below:
            following = value if rank + 1 < below or not part else ordered[index + 1][0]
            return value + (following - value) * part / 100
    raise ValueError("no values")
