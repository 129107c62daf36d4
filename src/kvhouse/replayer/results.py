"""What a drive comes to: the figures of a replay or a run, with stable keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvhouse.replayer.slo import Goodput
from kvhouse.replayer.tier_results import TierHits
from kvhouse.replayer.timeline import Timeline


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
class Refusals:
    """How often the head of the queue got no memory, each request and reason counted once.

    Attributes:
        full: Fewer blocks were free than it needs.
        watermark: Enough were free, but not beside those held back for running requests to grow.
        fragmented: Enough were free, but not in one run.
        slots: No slot for its state was free.
        fragmented_seconds: How long free blocks were of no use to the head of the queue.
    """

    full: int
    watermark: int
    fragmented: int
    slots: int
    fragmented_seconds: float


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """What the finished requests found in the pool when they were first admitted.

    Attributes:
        requests: Requests that found any of their prompt.
        request_share: Of the finished requests.
        tokens: Prompt tokens found.
        token_share: Of their prompt tokens.
        blocks: Whole blocks of prompts found.
        block_share: Of all whole blocks of their prompts.
        later_tokens: Tokens of other requests that were found, or loaded from a tier, only when
            a request came back from a preemption.
        saved_bytes: Mean over time of what requests would have held beside the pool's bytes,
            had they not shared blocks while they ran.
    """

    requests: int
    request_share: float
    tokens: int
    token_share: float
    blocks: int
    block_share: float
    later_tokens: int
    saved_bytes: float


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The figures of one drive. Times are in seconds.

    Attributes:
        scenario: The traffic and the limits.
        timing: What the times are: ``modelled`` (a roofline floor) or ``measured``.
        pool: The pool.
        submitted: Requests that arrived; finished ones and rejections add up to it, unless the
            drive ended early.
        finished: Requests that got all their tokens.
        rejections: Requests that could never fit.
        prompt_tokens: Prompt tokens of the finished requests.
        output_tokens: Tokens that they got.
        computed_tokens: Tokens that steps computed: prompts and outputs without each last token,
            less ``reused_tokens``, more ``recomputed_tokens``.
        reused_tokens: Tokens not computed because another request's were in the pool or in a tier
            below it.
        recomputed_tokens: Tokens computed again after a preemption.
        loaded_tokens: Tokens of the finished requests that were loaded from tiers, over all
            admissions.
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
        goodput: Requests that met the SLO; None where none was given.
        refusals: Why the head of the queue had to wait for memory.
        prefix: What was found in the pool; None without a prefix cache.
        tiers: What was loaded from tiers, and their traffic; None without tiers.
        ledger: Where the pool's bytes were.
        timeline: The pool and the requests bin by bin; None where none was asked for.
    """

    scenario: dict[str, Any]
    timing: str
    pool: PoolSummary
    submitted: int
    finished: int
    rejections: tuple[Rejection, ...]
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    loaded_tokens: int
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
    goodput: Goodput | None
    refusals: Refusals
    prefix: PrefixHits | None
    tiers: TierHits | None
    ledger: LedgerSummary
    timeline: Timeline | None

    @property
    def partial(self) -> bool:
        """Whether the drive ended early; its figures are those of what had ended by then.

        Only ``computed_tokens`` and ``preemptions`` count requests under way too, as does what is
        looked at over time.
        """
        asked = self.scenario.get("requests", self.submitted)
        return bool(self.finished + len(self.rejections) < asked)

    def to_dict(self) -> dict[str, Any]:
        """The same keys, nested, as plain values; a distribution of nothing is None."""
        return asdict(self)
