"""What a drive comes to: the figures of a replay or a run, with stable keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.core.memory import KVMemory
from kvhouse.replayer.drive import DriveLog, Interval, RequestRecord


@dataclass(frozen=True, slots=True)
class Distribution:
    """A sample's mean and percentiles.

    A percentile that falls between two values is interpolated linearly (numpy's ``linear``).
    """

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution | None:
        """Of these values; None when there are none."""
        if not values:
            return None
        p50, p90, p99 = (float(p) for p in np.percentile(values, (50, 90, 99), method="linear"))
        return cls(math.fsum(values) / len(values), p50, p90, p99, max(values))


@dataclass(frozen=True, slots=True)
class Level:
    """A number of requests over time: its peak, and its mean weighted by time."""

    peak: int
    mean: float


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """The pool that was driven: its policy, and its size in blocks and bytes."""

    policy: str
    bytes: int
    blocks: int
    block_bytes: int
    block_size: int


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """Where the pool's bytes were.

    Attributes:
        mean_bytes: By class, the mean weighted by time; they sum to the pool.
        mean_share: The same as shares of the pool.
        peak_used_bytes: The most bytes that held token states at once.
    """

    mean_bytes: dict[str, float]
    mean_share: dict[str, float]
    peak_used_bytes: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that was refused: its place in the order of arrival, and why."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The figures of one drive. Times are in seconds.

    Attributes:
        scenario: The traffic and the limits.
        timing: What the times are: ``modelled`` (a roofline floor) or ``measured``.
        pool: The pool.
        submitted: Requests that arrived; finished ones and rejections add up to it.
        finished: Requests that got all their tokens.
        rejections: Requests that could never fit.
        prompt_tokens: Prompt tokens of the finished requests.
        output_tokens: Tokens that they got.
        recomputed_tokens: Tokens computed again after a preemption.
        preemptions: How often a request lost its memory.
        steps: Steps taken.
        makespan_seconds: From time 0, when a trace's first request arrives, to the last token.
        output_tokens_per_second: Over the makespan.
        requests_per_second: Over the makespan.
        running: Requests that held memory: the concurrency.
        waiting: Requests in the queue.
        queue_seconds: From arrival until the first memory.
        first_token_seconds: From arrival to the first token (TTFT).
        per_token_seconds: From the first token to the last, per token after the first (TPOT);
            requests with one token have none.
        latency_seconds: From arrival to the last token.
        ledger: Where the pool's bytes were.
    """

    scenario: dict[str, Any]
    timing: str
    pool: PoolSummary
    submitted: int
    finished: int
    rejections: tuple[Rejection, ...]
    prompt_tokens: int
    output_tokens: int
    recomputed_tokens: int
    preemptions: int
    steps: int
    makespan_seconds: float
    output_tokens_per_second: float
    requests_per_second: float
    running: Level
    waiting: Level
    queue_seconds: Distribution | None
    first_token_seconds: Distribution | None
    per_token_seconds: Distribution | None
    latency_seconds: Distribution | None
    ledger: LedgerSummary

    def to_dict(self) -> dict[str, Any]:
        """The same keys, nested, as plain values; a distribution of nothing is None."""
        return asdict(self)


def summarise(
    log: DriveLog, memory: KVMemory, scenario: dict[str, Any] | None = None
) -> ReplayResult:
    """Sum up a finished drive over ``memory``.

    Raises:
        RuntimeError: The drive did not conserve requests or tokens, a bug in kvhouse.
    """
    finished = [record for record in log.requests if record.finished is not None]
    rejections = tuple(
        Rejection(record.index, record.rejection)
        for record in log.requests
        if record.rejection is not None
    )
    computed = sum(interval.tokens for interval in log.intervals)
    # The last token of a request is sampled but never computed.
    needed = sum(record.prompt_tokens + record.generated - 1 for record in finished)
    preemptions = sum(interval.preempted for interval in log.intervals)
    if len(finished) + len(rejections) != len(log.requests):
        raise RuntimeError("requests were lost: finished and rejected ones do not add up")
    if computed < needed or (computed > needed and not preemptions):
        raise RuntimeError(f"tokens were lost: {computed} computed where {needed} were needed")
    output_tokens = sum(record.generated for record in finished)
    makespan = math.fsum(interval.seconds for interval in log.intervals)
    return ReplayResult(
        scenario=scenario or {},
        timing=log.timing,
        pool=_pool(memory),
        submitted=len(log.requests),
        finished=len(finished),
        rejections=rejections,
        prompt_tokens=sum(record.prompt_tokens for record in finished),
        output_tokens=output_tokens,
        recomputed_tokens=computed - needed,
        preemptions=preemptions,
        steps=sum(interval.step is not None for interval in log.intervals),
        makespan_seconds=makespan,
        output_tokens_per_second=output_tokens / makespan if makespan else 0.0,
        requests_per_second=len(finished) / makespan if makespan else 0.0,
        running=_level(log.intervals, [interval.running for interval in log.intervals]),
        waiting=_level(log.intervals, [interval.waiting for interval in log.intervals]),
        queue_seconds=Distribution.of([_since_arrival(r, r.admitted) for r in finished]),
        first_token_seconds=Distribution.of([_since_arrival(r, r.first_token) for r in finished]),
        per_token_seconds=Distribution.of([_per_token(r) for r in finished if r.generated > 1]),
        latency_seconds=Distribution.of([_since_arrival(r, r.finished) for r in finished]),
        ledger=_ledger(log.intervals, memory),
    )


def _pool(memory: KVMemory) -> PoolSummary:
    layout = memory.layout
    return PoolSummary(
        memory.policy,
        memory.total_bytes,
        memory.total_blocks,
        layout.block_bytes,
        layout.block_size,
    )


def _since_arrival(record: RequestRecord, moment: float | None) -> float:
    if moment is None:
        raise RuntimeError(f"request {record.index} finished without having begun")
    return moment - record.arrival


def _per_token(record: RequestRecord) -> float:
    first = _since_arrival(record, record.first_token)
    return (_since_arrival(record, record.finished) - first) / (record.generated - 1)


def _mean(intervals: Sequence[Interval], values: Sequence[float]) -> float:
    """Mean of one value per interval, weighted by time; 0 when no time passed."""
    seconds = math.fsum(interval.seconds for interval in intervals)
    pairs = zip(intervals, values, strict=True)
    return math.fsum(i.seconds * value for i, value in pairs) / seconds if seconds else 0.0


def _level(intervals: Sequence[Interval], values: Sequence[int]) -> Level:
    return Level(max(values, default=0), _mean(intervals, values))


def _ledger(intervals: Sequence[Interval], memory: KVMemory) -> LedgerSummary:
    total = memory.total_bytes
    by_class = {
        name: [getattr(interval.ledger, name) for interval in intervals] for name in LEDGER_CLASSES
    }
    mean = {name: _mean(intervals, values) for name, values in by_class.items()}
    if not any(mean.values()):  # no time passed: the pool is as it is between drives
        mean["free"] = float(total)
    share = {name: value / total for name, value in mean.items()}
    return LedgerSummary(mean, share, max(by_class["used"], default=0))
