"""Searches over replays: the highest rate, and the smallest pool, that still serve well.

Neither is guaranteed to be monotone: a little more load, or a little less memory, can order
requests differently and serve them better. A search therefore states what it did: it brackets by
doubling or halving and then bisects, so the setting found holds and the next one tried, a step
beyond it, does not. Settings further beyond may hold again; every probe is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from kvhouse.core.memory import MOST_BLOCKS
from kvhouse.core.policy import Placement, get_policy
from kvhouse.core.request import Request
from kvhouse.errors import KvhouseError
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.search import DEFAULT_SHARE, Goal, Probe, Search, SearchStopped
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.trace_request import MOST_SECONDS
from kvhouse.replayer.trace_table import TraceTable

__all__ = [
    "DEFAULT_SHARE",
    "Found",
    "Goal",
    "Probe",
    "SearchStopped",
    "find_max_rate",
    "find_min_memory",
]

#: The rate is found within this factor.
RATE_STEP = 1.01

#: Rates are tried between the trace's own over this and times this.
MOST_FACTOR = 2.0**20

#: Requests per second; those that come faster come at once.
_MOST_RATE = 1e15

#: A search slows what a trace may hold, at most ``MOST_SECONDS``, down by ``MOST_FACTOR``.
MOST_LATEST = MOST_SECONDS * MOST_FACTOR


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        find: ``max-rate`` or ``min-memory``.
        value: The largest factor on the trace's rate, or the fewest blocks, that was tried and
            reached the goal.
        unit: ``factor`` or ``blocks``.
        requests_per_second: The rate of arrivals at that factor, for ``max-rate``.
        pool_bytes: Bytes of the pool, with its slots.
        bounded: Whether a setting beyond ``value`` was tried and failed. If not, the goal was
            reached at every setting that is tried at all.
        goal: What was asked.
        partial: Whether it was told to stop before it was done; there may be a better setting.
        probes: Every replay, in order.
        result: The figures at ``value``.
    """

    find: Literal["max-rate", "min-memory"]
    value: float
    unit: Literal["factor", "blocks"]
    requests_per_second: float | None
    pool_bytes: int
    bounded: bool
    goal: Goal
    partial: bool
    probes: tuple[Probe, ...]
    result: ReplayResult

    def to_dict(self) -> dict[str, Any]:
        """The same keys, nested, as plain values."""
        return asdict(self)


def find_max_rate(
    setup: Setup,
    goal: Goal,
    *,
    on_ended: Callable[[RequestRecord], None] | None = None,
    stop: Stop | None = None,
) -> Found:
    """The largest factor on the trace's rate of arrivals at which the goal is reached.

    From factor 1 it doubles while the goal is reached, or halves until it is, and then bisects
    until the factor that fails is at most 1 % above the one that holds.

    Args:
        setup: What is replayed; its trace's arrivals are divided by the factor.
        goal: With an SLO.
        on_ended: Called for each request of each replay.
        stop: Ends it early, with the best so far.

    Raises:
        KvhouseError: No SLO, no rate to change, or the goal is missed however slowly requests come.
        SearchStopped: It was told to stop too early to say anything.
    """
    if goal.slo is None:
        raise KvhouseError("a largest rate needs an SLO: say what requests must meet")
    own = None if setup.as_backlog else own_rate(TraceTable(setup.trace.requests))
    if own is None:
        raise KvhouseError("all requests arrive at once: there is no rate to change")
    search = Search(lambda factor: at_rate(setup, factor), goal, on_ended, stop)
    with search.until_stopped():
        _find_factor(search)
    return _found("max-rate", "factor", own, goal, search)


def find_min_memory(
    setup: Setup,
    goal: Goal,
    *,
    on_ended: Callable[[RequestRecord], None] | None = None,
    stop: Stop | None = None,
) -> Found:
    """The fewest blocks with which the goal is reached.

    It begins with the blocks of the largest request, doubles until the goal is reached, and
    bisects between that and the last failure (or no block at all) to the very block.

    Args:
        setup: What is replayed; its pool is replaced.
        goal: What a pool must reach.
        on_ended: Called for each request of each replay.
        stop: Ends it early, with the best so far.

    Raises:
        KvhouseError: The goal is missed even where no request ever waits for memory.
        SearchStopped: It was told to stop too early to say anything.
    """
    limit = setup.config.max_length
    long = sum(one.prompt_tokens + one.output_tokens > limit for one in setup.trace.requests)
    if long and goal.slo is None:
        raise KvhouseError(
            f"{long:,} requests exceed the maximum length of {limit:,} tokens and would be "
            "rejected however much memory there is: cut them, or raise max_length"
        )
    largest, enough = blocks_needed(setup)
    search = Search(lambda blocks: replace(setup, kv_blocks=int(blocks)), goal, on_ended, stop)
    with search.until_stopped():
        _find_blocks(search, largest, enough)
    return _found("min-memory", "blocks", None, goal, search)


def _find_factor(search: Search) -> None:
    low, high = 1.0, 1.0
    if search.holds(1.0):
        while high == low and high < MOST_FACTOR:
            high *= 2
            low = high if search.holds(high) else low
    else:
        low /= 2
        while not search.holds(low):
            if low <= 1 / MOST_FACTOR:
                raise KvhouseError(
                    f"at {low:.2g} times the trace's rate, too few requests still meet the SLO: "
                    "it asks for more than the device can give"
                )
            high, low = low, low / 2
    while high > low * RATE_STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if search.holds(middle) else (low, middle)


def _find_blocks(search: Search, largest: int, enough: int) -> None:
    low, high = 0, min(largest, enough)
    while not search.holds(high):
        if high >= enough:
            raise KvhouseError(
                f"with {high:,} blocks no request waits for memory, and still the goal is missed: "
                "more memory does not help"
            )
        low, high = high, min(2 * high, enough)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if search.holds(middle) else (middle, high)


def own_rate(requests: TraceTable) -> float | None:
    """A trace's arrivals per second; None where all come at once, as far as floats can tell."""
    rate = requests.rate
    return rate if rate is not None and rate <= _MOST_RATE else None


def at_rate(setup: Setup, factor: float) -> Setup:
    """The same replay with requests that arrive so many times as fast.

    Raises:
        KvhouseError: The last of them would arrive later than kvhouse counts.
    """
    trace = setup.trace
    last = trace.requests[-1].arrival / factor if trace.requests else 0.0
    if last > MOST_LATEST:
        raise KvhouseError(
            f"{factor:.3g} times the trace's rate: the last request would arrive after "
            f"{last:.3g} seconds; give a higher rate"
        )
    selection = replace(trace.selection, scale_rate=trace.selection.scale_rate * factor)
    requests = (one._replace(arrival=one.arrival / factor) for one in trace.requests)
    return replace(setup, trace=replace(trace, requests=TraceTable(requests), selection=selection))


def blocks_needed(setup: Setup) -> tuple[int, int]:
    """Blocks of the largest request, and blocks with which none ever waits for memory.

    Raises:
        KvhouseError: Every request is longer than the maximum length, or the watermark is out of
            range.
    """
    config = setup.config
    placement = Placement(
        get_policy(setup.policy), setup.layout, config.max_length, config.token_budget, setup.fit
    )
    placement.held_back(0, setup.watermark)  # which a share of 1 or more would make endless
    needs = []
    for one in setup.part.requests:
        request = Request(0, one.prompt_tokens, one.output_tokens)
        if one.prompt_tokens + one.output_tokens <= config.max_length:
            needs.append(
                placement.blocks_to_admit(request.most_slots, one.prompt_tokens, one.output_tokens)
            )
    if not needs:
        raise KvhouseError(f"no request is within the maximum length of {config.max_length:,}")
    at_once = sum(sorted(needs)[-config.max_running :])
    enough = int(at_once / (1 - setup.watermark)) + 2
    return max(1, max(needs)), max(1, min(MOST_BLOCKS, enough))


def _found(
    find: Literal["max-rate", "min-memory"],
    unit: Literal["factor", "blocks"],
    rate: float | None,
    goal: Goal,
    search: Search,
) -> Found:
    """What a search found; ``rate`` is that of arrivals at factor 1."""
    value, best = search.value, search.best
    if best is None:
        if not search.stopped:
            raise RuntimeError("a search ended without a result")
        tried = ", ".join(f"{probe.value:,.4g}" for probe in search.probes) or "none"
        raise SearchStopped(f"stopped before any setting held; {unit} tried: {tried}")
    sign = 1 if unit == "factor" else -1
    bounded = any(not one.holds and sign * (one.value - value) > 0 for one in search.probes)
    return Found(
        find=find,
        value=value,
        unit=unit,
        requests_per_second=None if rate is None else rate * value,
        pool_bytes=best.pool.bytes,
        bounded=bounded,
        goal=goal,
        partial=search.stopped,
        probes=tuple(search.probes),
        result=best,
    )
