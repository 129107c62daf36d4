"""What holds the base back, and by what that can be told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kvhouse.core.policy import PAGED
from kvhouse.errors import KvhouseError
from kvhouse.replayer.find import blocks_needed, own_rate
from kvhouse.replayer.remedies.figures import Driven, Figures
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.trace_table import TraceTable
from kvhouse.units import bytes_text, counted

#: Share of the requests from which on the load counts as served.
SERVED = 0.99
#: Where no SLO is given, the most of their time that requests of a served load wait for memory. A
#: request that meets an idle device waits for nothing, one that meets a busy one for its step.
WAITING = 0.05
#: Differences of goodput up to this are none.
MARGIN = 0.01

LimitName = Literal["arrivals", "memory", "max-running", "length", "device"]


@dataclass(frozen=True, slots=True)
class Limit:
    """What bounds the base's goodput.

    Attributes:
        name: ``arrivals``: the load is served as it comes, so nothing can serve more of it.
            ``memory``: with a pool in which no request waits, goodput is higher. ``max-running``:
            more requests than may run at once wait. ``length``: every request is longer than is
            allowed. ``device``: what is left, its speed.
        beyond: Where it is memory, what holds the base back with memory enough for all:
            ``arrivals``, ``max-running`` or ``device``; else None.
        offered_per_second: Rate of arrivals; None where all come at once.
        served_per_second: Finished requests over the makespan.
        unbounded: The figures with a pool in which no request waits for memory; None where
            every request is too long.
        unbounded_flags: Options that give it, behind those of the base.
        unbounded_bytes: Bytes of that pool.
        evidence: What it is told by, in words.
    """

    name: LimitName
    beyond: LimitName | None
    offered_per_second: float | None
    served_per_second: float
    unbounded: Figures | None
    unbounded_flags: str
    unbounded_bytes: int | None
    evidence: tuple[str, ...]


def without_bounds(base: Setup) -> Setup | None:
    """The base with a pool in which no request waits for memory; None where all are too long.

    Raises:
        KvhouseError: The base is impossible.
    """
    paged, least = replace(base, policy=PAGED), base.scenario().pool.blocks
    try:
        _, enough = blocks_needed(paged)
    except KvhouseError:
        return None
    return replace(paged, kv_blocks=max(enough, least))


def limit_of(base: Driven, unbounded: Driven | None, flags: str) -> Limit:
    """Judge a base by its own replay and by one with memory enough.

    Args:
        base: The base.
        unbounded: The replay of ``without_bounds``.
        flags: Options that give it.
    """
    figures, (setup,), (result,) = base.figures, base.setups, base.results
    offered = _offered(setup)
    more = unbounded.figures if unbounded else None
    served = figures.finished / figures.makespan_seconds if figures.makespan_seconds else 0.0
    asked = result.goodput is not None
    name, beyond = _but_memory(base, offered, setup.max_running), None
    if unbounded is None:
        name = "length"
    elif name != "arrivals" and serves_more(
        figures, unbounded.figures, timed=asked and offered is not None
    ):
        name, beyond = "memory", _but_memory(unbounded, offered, setup.max_running)
    size = unbounded.results[0].pool.bytes if unbounded else None
    evidence = tuple(_evidence(base, offered, served, more, size))
    return Limit(name, beyond, offered, served, more, flags, size, evidence)


def _but_memory(driven: Driven, offered: float | None, max_running: int) -> LimitName:
    """What holds a replay back, if it is not memory."""
    (result,) = driven.results
    if all_served(driven.figures, offered, asked=result.goodput is not None):
        return "arrivals"
    if result.running.peak >= max_running and result.waiting.mean > 0:
        return "max-running"
    return "device"


def _offered(setup: Setup) -> float | None:
    return None if setup.as_backlog else own_rate(TraceTable(setup.part.requests))


def all_served(figures: Figures, offered: float | None, *, asked: bool) -> bool:
    """Whether requests are served as they come; asked: whether they are given an SLO."""
    if offered is None or figures.in_time_share < SERVED:
        return False
    return asked or figures.queue_share <= WAITING


def serves_more(before: Figures, after: Figures, *, timed: bool) -> bool:
    """Whether goodput is higher by more than differences that count as none.

    Args:
        before: What it is compared with.
        after: What may be more.
        timed: Whether requests that come over time are given an SLO. The same of them within it
            are then no gain, however much sooner the last of the others is done.
    """
    if timed and after.in_time <= before.in_time * (1 + MARGIN):
        return False
    return after.goodput_per_second > before.goodput_per_second * (1 + MARGIN)


def _evidence(
    base: Driven, offered: float | None, served: float, more: Figures | None, size: int | None
) -> Iterator[str]:
    figures, (result,) = base.figures, base.results
    asked = "met the SLO" if result.goodput else "finished"
    yield f"{figures.in_time_share:.1%} of {figures.submitted:,} requests {asked}"
    rate = "all requests come at once" if offered is None else f"{offered:,.4g} requests/s arrive"
    yield f"{rate}, {served:,.4g} are served"
    waits = f"they wait {figures.queue_share:.1%} of their time in the system to be admitted"
    yield waits if more is None else f"{waits}, {more.queue_share:.1%} with memory enough for all"
    yield (
        f"at most {figures.used_peak_share:.1%} of the pool holds tokens, {figures.refusals:,} "
        f"refusals, {figures.preemptions:,} preemptions"
    )
    if result.rejections:
        first, count = result.rejections[0], len(result.rejections)
        of_them = "" if count == 1 else "the first, "
        yield f"{counted(count, 'request')} can never fit: {of_them}{first.reason}"
    if more and size is not None:
        yield (
            f"with memory enough for all ({bytes_text(size)}) {more.in_time_share:.1%} {asked}, "
            f"and goodput is {more.goodput_per_second:,.4g} requests/s instead of "
            f"{figures.goodput_per_second:,.4g}"
        )
