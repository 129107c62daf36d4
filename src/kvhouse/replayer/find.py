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
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.trace_table import TraceTable

#: Share of the requests that must meet the SLO, where nothing else is said.
DEFAULT_SHARE = 0.99

#: The rate is found within this factor.
RATE_STEP = 1.01

#: Rates are tried between the trace's own over this and times this.
MOST_FACTOR = 2.0**20


@dataclass(frozen=True, slots=True)
class Goal:
    """What a setting must reach.

    Attributes:
        slo: What requests must meet; without one, no request may be rejected or preempted.
        share: How many of them must.

    Raises:
        KvhouseError: ``share`` is not in (0, 1].
    """

    slo: SLO | None
    share: float = DEFAULT_SHARE

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise KvhouseError(f"SLO share {self.share}: give a share above 0 and up to 1")

    def reached(self, result: ReplayResult) -> bool:
        """Whether a replay reached it."""
        if result.goodput is None:
            return not result.rejections and not result.preemptions
        return result.goodput.share >= self.share


@dataclass(frozen=True, slots=True)
class Probe:
    """One replay of a search.

    Attributes:
        value: The factor on the rate, or the blocks of the pool.
        holds: Whether the goal was reached.
        share: Share of the requests that met the SLO; None without one.
        rejections: Requests that could never fit.
        preemptions: How often a request lost its memory.
    """

    value: float
    holds: bool
    share: float | None
    rejections: int
    preemptions: int


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
    probes: tuple[Probe, ...]
    result: ReplayResult

    def to_dict(self) -> dict[str, Any]:
        """The same keys, nested, as plain values."""
        return asdict(self)


class _Search:
    """Replays of one setup, remembered."""

    def __init__(
        self,
        at: Callable[[float], Setup],
        goal: Goal,
        on_ended: Callable[[RequestRecord], None] | None,
    ) -> None:
        self._at, self._goal, self._on_ended = at, goal, on_ended
        self.probes: list[Probe] = []
        self.best: ReplayResult | None = None

    def holds(self, value: float) -> bool:
        """Replay at ``value``; the latest result that held is kept."""
        result = self._at(value).drive(slo=self._goal.slo, on_ended=self._on_ended)
        holds = self._goal.reached(result)
        share = result.goodput.share if result.goodput else None
        self.probes.append(Probe(value, holds, share, len(result.rejections), result.preemptions))
        if holds:
            self.best = result
        return holds


def find_max_rate(
    setup: Setup, goal: Goal, *, on_ended: Callable[[RequestRecord], None] | None = None
) -> Found:
    """The largest factor on the trace's rate of arrivals at which the goal is reached.

    From factor 1 it doubles while the goal is reached, or halves until it is, and then bisects
    until the factor that fails is at most 1 % above the one that holds.

    Args:
        setup: What is replayed; its trace's arrivals are divided by the factor.
        goal: With an SLO.
        on_ended: Called for each request of each replay.

    Raises:
        KvhouseError: No SLO, no rate to change, or the goal is missed however slowly requests come.
    """
    if goal.slo is None:
        raise KvhouseError("a largest rate needs an SLO: say what requests must meet")
    arrivals = [request.arrival for request in setup.trace.requests]
    span = max(arrivals, default=0.0) - min(arrivals, default=0.0)
    if setup.as_backlog or not span:
        raise KvhouseError("all requests arrive at once: there is no rate to change")
    search = _Search(lambda factor: _at_rate(setup, factor), goal, on_ended)
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
    bounded = high > low
    while high > low * RATE_STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if search.holds(middle) else (low, middle)
    rate = (len(arrivals) - 1) / span * low
    return _found("max-rate", low, "factor", rate, bounded, goal, search)


def find_min_memory(
    setup: Setup, goal: Goal, *, on_ended: Callable[[RequestRecord], None] | None = None
) -> Found:
    """The fewest blocks with which the goal is reached.

    It begins with the blocks of the largest request, doubles until the goal is reached, and
    bisects between that and the last failure (or no block at all) to the very block.

    Args:
        setup: What is replayed; its pool is replaced.
        goal: What a pool must reach.
        on_ended: Called for each request of each replay.

    Raises:
        KvhouseError: The goal is missed even where no request ever waits for memory.
    """
    limit = setup.config.max_length
    long = sum(one.prompt_tokens + one.output_tokens > limit for one in setup.trace.requests)
    if long and goal.slo is None:
        raise KvhouseError(
            f"{long:,} requests exceed the maximum length of {limit:,} tokens and would be "
            "rejected however much memory there is: cut them, or raise max_length"
        )
    largest, enough = blocks_needed(setup)
    search = _Search(lambda blocks: replace(setup, kv_blocks=int(blocks)), goal, on_ended)
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
    return _found("min-memory", high, "blocks", None, low > 0, goal, search)


def _at_rate(setup: Setup, factor: float) -> Setup:
    trace = setup.trace
    selection = replace(trace.selection, scale_rate=trace.selection.scale_rate * factor)
    requests = (replace(one, arrival=one.arrival / factor) for one in trace.requests)
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
    value: float,
    unit: Literal["factor", "blocks"],
    rate: float | None,
    bounded: bool,
    goal: Goal,
    search: _Search,
) -> Found:
    if search.best is None:
        raise RuntimeError("a search ended without a result")
    return Found(
        find,
        value,
        unit,
        rate,
        search.best.pool.bytes,
        bounded,
        goal,
        tuple(search.probes),
        search.best,
    )
