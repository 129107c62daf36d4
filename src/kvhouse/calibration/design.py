"""Which steps are timed: batches, contexts and chunks of prompts, alone and together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvhouse.core.memory import make_memory
from kvhouse.core.policy import PAGED
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Sampled, StepPlan, StepResult
from kvhouse.errors import RequestRejected
from kvhouse.layout import KVLayout, PoolSize

#: Requests that decode together. Products with few rows take other ways through a library of
#: linear algebra than those with many, and no straight line; so each small number is timed.
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
#: Tokens that each of them has, at least and at most.
CONTEXTS = (64, 1024)
#: Further contexts of one that decodes alone.
LONG_CONTEXTS = (2048, 4096)
#: Tokens of a chunk of a prompt.
CHUNKS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
#: The largest chunk that is timed both as the end of a prompt and as one that goes on.
ENDING = 512
#: Chunks that begin after so many tokens.
LATER, LATER_CHUNKS = 1024, (16, 64, 128, 256, 512)
#: Requests that decode beside a chunk, and the tokens that they have.
BESIDE, BESIDE_CONTEXT = 8, 256
#: Share of the pool that a point may fill.
_FILLED = 0.9


@dataclass(frozen=True, slots=True)
class Point:
    """One step of the design.

    Attributes:
        decoding: Requests that decode.
        context: Tokens that each of these has, about.
        chunk: Tokens of a prompt; 0 for none.
        first: Tokens of that prompt before the chunk, about.
        samples: Whether the chunk ends its prompt.
    """

    decoding: int
    context: int
    chunk: int = 0
    first: int = 0
    samples: bool = False

    @property
    def tokens(self) -> int:
        """Tokens computed in the step."""
        return self.decoding + self.chunk

    @property
    def held(self) -> int:
        """Tokens in the pool."""
        return self.decoding * (self.context + 1) + self.first + self.chunk


def design(pool_tokens: int, limits: SchedulerConfig) -> list[Point]:
    """The steps to time, those of few tokens first.

    Args:
        pool_tokens: Tokens that the pool has room for.
        limits: The engine's; what it would never do is left out.
    """
    room = int(_FILLED * pool_tokens)
    short, long = CONTEXTS
    points = [Point(b, min(short, room // b - 1)) for b in BATCHES]
    points += [Point(b, min(long, room // b - 1)) for b in BATCHES]
    points += [Point(1, context) for context in LONG_CONTEXTS]
    points += [Point(0, 0, c, samples=True) for c in CHUNKS if c <= ENDING]
    points += [Point(0, 0, c, LATER) for c in LATER_CHUNKS]
    points += [Point(BESIDE, BESIDE_CONTEXT, c - BESIDE, samples=True) for c in CHUNKS]
    points += [Point(0, 0, c) for c in CHUNKS]
    longest = limits.max_length - 1
    kept = {
        point
        for point in points
        if point.tokens <= limits.token_budget
        and point.decoding + (point.chunk > 0) <= limits.max_running
        and point.held <= room
        and 0 < max(point.context, point.first + point.chunk) < longest
        and min(point.context, point.decoding) >= (point.decoding > 0)
    }
    return sorted(kept, key=lambda p: (p.tokens, p.decoding, p.context, p.first, p.samples))


def plan_of(
    point: Point, layout: KVLayout, size: PoolSize, limits: SchedulerConfig
) -> StepPlan | None:
    """The step's plan, made by the engine's own scheduler; None where it has no room for it.

    Requests are led to where the step begins by steps that nobody computes.
    """
    budget = point.tokens if point.chunk else limits.token_budget
    config = SchedulerConfig(limits.max_length, budget, point.decoding + 1)
    memory = make_memory(PAGED, layout, size, limits.max_length, 0.0, in_flight=budget)
    scheduler = Scheduler(memory, config)
    left = max(1, budget - point.decoding)  # for prompts, once all the others decode
    others = max(0, point.decoding - 1)
    steps = (others * point.context + point.first) // left + point.decoding + 3
    try:
        for _ in range(point.decoding):
            room = limits.max_length - point.context
            scheduler.submit(point.context, min(steps, room))
        if not _lead(scheduler, point.decoding, _decode):
            return None
        if point.chunk:
            rest = 0 if point.samples else 1
            prompt = scheduler.submit(point.first + point.chunk + rest, 1)
            if point.first:
                _lead(scheduler, point.decoding + 1, lambda _: prompt.computed >= point.first)
    except RequestRejected:
        return None
    plan = scheduler.schedule()
    return plan if plan.tokens == point.tokens and not plan.preempted else None


def _decode(scheduler: Scheduler) -> bool:
    return all(request.decoding for request in scheduler.running)


def _lead(scheduler: Scheduler, running: int, there: Callable[[Scheduler], bool]) -> bool:
    """Take steps until so many run and are where they should be; False where some never are."""
    while not (len(scheduler.running) == running and there(scheduler)):
        plan = scheduler.schedule()
        if plan.preempted or not plan.rows:
            return False
        sampled = tuple(Sampled(row.request) for row in plan.rows if row.samples)
        if scheduler.apply(plan, StepResult(0.0, sampled)):
            return False
    return True
