"""From the log of a drive to its figures."""

from __future__ import annotations

from typing import Any

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.core.memory import KVMemory
from kvhouse.replayer.intervals import Intervals
from kvhouse.replayer.records import DriveLog, RequestRecord
from kvhouse.replayer.results import (
    Distribution,
    LedgerSummary,
    Level,
    PoolSummary,
    PrefixHits,
    Refusals,
    Rejection,
    ReplayResult,
)
from kvhouse.replayer.slo import SLO, Goodput
from kvhouse.replayer.tier_results import TierHits
from kvhouse.replayer.timeline import Timeline


def summarise(
    log: DriveLog,
    memory: KVMemory,
    scenario: dict[str, Any] | None = None,
    *,
    slo: SLO | None = None,
    timeline: int | None = None,
) -> ReplayResult:
    """Sum up a drive over ``memory``: what ended of it, where it was ended early.

    Args:
        log: What the drive saw.
        memory: Its pool.
        scenario: The traffic and the limits, to stand beside the figures.
        slo: What requests should meet.
        timeline: Bins of the timeline, if one is wanted.

    Raises:
        KvhouseError: The number of bins is out of range.
        RuntimeError: The drive did not conserve requests or tokens, a bug in kvhouse.
    """
    finished = [record for record in log.requests if record.finished is not None]
    rejections = tuple(
        Rejection(record.index, record.rejection)
        for record in log.requests
        if record.rejection is not None
    )
    ended = log.requests
    if log.unfinished:
        ended = [one for one in ended if one.finished is not None or one.rejection is not None]
    intervals = Intervals.of(log.intervals)
    _check_conservation(log, intervals.tokens, finished, len(rejections))
    output_tokens = sum(record.generated for record in finished)
    makespan = intervals.seconds
    return ReplayResult(
        scenario=scenario or {},
        timing=log.timing,
        pool=_pool(memory),
        submitted=len(log.requests),
        finished=len(finished),
        rejections=rejections,
        prompt_tokens=sum(record.prompt_tokens for record in finished),
        output_tokens=output_tokens,
        computed_tokens=intervals.tokens,
        reused_tokens=sum(record.reused for record in finished),
        recomputed_tokens=sum(record.recomputed for record in finished),
        loaded_tokens=sum(record.loaded for record in finished),
        preemptions=intervals.preempted,
        steps=intervals.steps,
        makespan_seconds=makespan,
        output_tokens_per_second=output_tokens / makespan if makespan else 0.0,
        requests_per_second=len(finished) / makespan if makespan else 0.0,
        running=_level(intervals, "running"),
        waiting=_level(intervals, "waiting"),
        queue_seconds=Distribution.of([record.queue_seconds for record in finished]),
        first_token_seconds=Distribution.of([record.first_token_seconds for record in finished]),
        per_token_seconds=Distribution.of(
            [span for span in (r.per_token_seconds for r in finished) if span is not None]
        ),
        latency_seconds=Distribution.of([record.latency_seconds for record in finished]),
        goodput=Goodput.of(slo, ended, makespan) if slo else None,
        refusals=_refusals(log, intervals),
        prefix=_prefix(intervals, finished, memory) if memory.shares else None,
        tiers=TierHits.of(finished, memory.tiers, memory.layout.block_bytes)
        if memory.tiers
        else None,
        ledger=_ledger(intervals, memory),
        timeline=None if timeline is None else Timeline.of(intervals, timeline),
    )


def _check_conservation(
    log: DriveLog, computed: int, finished: list[RequestRecord], rejected: int
) -> None:
    """Every request has ended, and every token was computed once, found, or computed again.

    So, too, what came into the pool (computed, taken up, loaded) is what left it (with requests
    that finished, or lost in preemptions) or is still there.
    """
    left = log.unfinished
    if len(finished) + rejected + len(left) != len(log.requests):
        raise RuntimeError("requests were lost: finished and rejected ones do not add up")
    # The last token of a request is sampled but never computed.
    ended = sum(record.prompt_tokens + record.generated - 1 for record in finished)
    needed = ended + sum(one.reached for one in left)
    held = ended + sum(one.held for one in left)
    served = [*finished, *(one.record for one in left)]
    generated = sum(record.generated for record in served)
    if generated != log.sampled:
        raise RuntimeError(f"tokens were lost: {log.sampled} sampled, {generated} given out")
    reused = sum(record.reused for record in served)
    recomputed = sum(record.recomputed for record in served)
    if computed != needed - reused + recomputed:
        raise RuntimeError(
            f"tokens were lost: {computed} computed where {needed} were needed, {reused} found "
            f"and {recomputed} computed again"
        )
    there = sum(record.taken_up + record.loaded for record in served)
    lost = sum(record.lost for record in served)
    if computed + there != held + lost:
        raise RuntimeError(
            f"tokens were lost: {computed} computed and {there} taken up or loaded, where "
            f"{held} were needed and {lost} lost in preemptions"
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


def _refusals(log: DriveLog, intervals: Intervals) -> Refusals:
    counts = log.refusals
    return Refusals(
        counts["full"],
        counts["watermark"],
        counts["fragmented"],
        counts["slots"],
        intervals.fragmented_seconds,
    )


def _prefix(intervals: Intervals, finished: list[RequestRecord], memory: KVMemory) -> PrefixHits:
    size = memory.layout.block_size
    requests = sum(record.found > 0 for record in finished)
    tokens = sum(record.found for record in finished)
    blocks = sum(record.found // size for record in finished)
    return PrefixHits(
        requests=requests,
        request_share=_share(requests, len(finished)),
        tokens=tokens,
        token_share=_share(tokens, sum(record.prompt_tokens for record in finished)),
        blocks=blocks,
        block_share=_share(blocks, sum(record.prompt_tokens // size for record in finished)),
        later_tokens=sum(r.reused - r.found - r.loaded_first for r in finished),
        saved_bytes=intervals.mean("saved"),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _level(intervals: Intervals, name: str) -> Level:
    return Level(intervals.peak(name), intervals.mean(name))


def _ledger(intervals: Intervals, memory: KVMemory) -> LedgerSummary:
    total = memory.total_bytes
    mean = {name: intervals.mean(name) for name in LEDGER_CLASSES}
    if not any(mean.values()):  # no time passed: the pool is as it is between drives
        mean["free"] = float(total)
    share = {name: value / total for name, value in mean.items()}
    return LedgerSummary(mean, share, intervals.peak("used"))
