"""What a setting comes to on all its devices together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvhouse.replayer.ratio import ratio
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO


@dataclass(frozen=True, slots=True)
class Figures:
    """One replay, or those of all replicas, which run side by side from time 0 on.

    Attributes:
        devices: Devices that it takes.
        submitted: Requests that arrived.
        finished: Requests that got all their tokens.
        in_time: Requests that met the SLO; without one all that finished.
        in_time_share: Of those submitted.
        goodput_per_second: ``in_time`` over the makespan.
        goodput_per_device: The same for each device.
        output_tokens_per_second: Over the makespan.
        in_memory_peak: Most requests in memory at once; of replicas the sum of their peaks.
        in_memory_mean: Requests in memory, mean over the makespan.
        queue_share: Part of the finished requests' time in the system that was spent before
            their first memory.
        first_token_seconds: Mean time to the first token; None of none.
        per_token_seconds: Mean time per token after it; None of none.
        preemptions: How often a request lost its memory.
        refusals: How often the head of the queue got no memory, each request and reason once.
        used_peak_share: The most of a pool that held token states at once.
        prefix_share: Prompt tokens found in the pool, of all; None without a prefix cache.
        loaded_share: Prompt tokens loaded from tiers, of all; None without tiers.
        makespan_seconds: Until the last replica is done.
    """

    devices: int
    submitted: int
    finished: int
    in_time: int
    in_time_share: float
    goodput_per_second: float
    goodput_per_device: float
    output_tokens_per_second: float
    in_memory_peak: int
    in_memory_mean: float
    queue_share: float
    first_token_seconds: float | None
    per_token_seconds: float | None
    preemptions: int
    refusals: int
    used_peak_share: float
    prefix_share: float | None
    loaded_share: float | None
    makespan_seconds: float


@dataclass(frozen=True, slots=True)
class Driven:
    """A setting's setups, one for each replica, and what became of them."""

    setups: tuple[Setup, ...]
    results: tuple[ReplayResult, ...]
    figures: Figures


def drive_all(setups: Sequence[Setup], slo: SLO | None) -> Driven:
    """Replay each replica of a setting.

    Raises:
        KvhouseError: One of them is impossible.
    """
    records: list[RequestRecord] = []
    results = tuple(setup.drive(slo=slo, on_ended=records.append) for setup in setups)
    return Driven(tuple(setups), results, _figures(setups, results, records))


def _figures(
    setups: Sequence[Setup], results: Sequence[ReplayResult], records: Sequence[RequestRecord]
) -> Figures:
    makespan = max(result.makespan_seconds for result in results)
    submitted = sum(result.submitted for result in results)
    in_time = sum(r.goodput.requests if r.goodput else r.finished for r in results)
    devices = sum(setup.tp for setup in setups)
    done = [record for record in records if record.finished is not None]
    spans = [span for span in (record.per_token_seconds for record in done) if span is not None]
    latency = math.fsum(record.latency_seconds for record in done)
    held = math.fsum(r.running.mean * r.makespan_seconds for r in results)
    tokens = sum(result.output_tokens for result in results)
    goodput = ratio(in_time, makespan)
    return Figures(
        devices=devices,
        submitted=submitted,
        finished=len(done),
        in_time=in_time,
        in_time_share=ratio(in_time, submitted),
        goodput_per_second=goodput,
        goodput_per_device=goodput / devices,
        output_tokens_per_second=ratio(tokens, makespan),
        in_memory_peak=sum(result.running.peak for result in results),
        in_memory_mean=ratio(held, makespan),
        queue_share=ratio(math.fsum(r.queue_seconds for r in done), latency),
        first_token_seconds=_mean([record.first_token_seconds for record in done]),
        per_token_seconds=_mean(spans),
        preemptions=sum(result.preemptions for result in results),
        refusals=sum(map(_refusals, results)),
        used_peak_share=max(r.ledger.peak_used_bytes / r.pool.bytes for r in results),
        prefix_share=_share(results, [r.prefix.tokens if r.prefix else None for r in results]),
        loaded_share=_share(results, [r.tiers.prompt_tokens if r.tiers else None for r in results]),
        makespan_seconds=makespan,
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _refusals(result: ReplayResult) -> int:
    """Those for want of memory, and no others."""
    why = result.refusals
    return why.full + why.watermark + why.fragmented + why.slots


def _share(results: Sequence[ReplayResult], counts: Sequence[int | None]) -> float | None:
    """Of all prompt tokens; None where nobody counted."""
    known = [count for count in counts if count is not None]
    prompt = sum(result.prompt_tokens for result in results)
    if len(known) < len(counts):
        return None
    return ratio(sum(known), prompt)
