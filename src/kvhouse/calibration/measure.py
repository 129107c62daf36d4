"""The design's steps, timed on the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np

from kvhouse.calibration.design import Point, design, plan_of
from kvhouse.core.step import StepPlan
from kvhouse.costs.fitted import Parts, StepParts
from kvhouse.engine.config import EngineConfig
from kvhouse.engine.executor import TorchExecutor
from kvhouse.engine.fast.paths import Paths
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.load import LoadedModel
from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.replayer.stop import Stop

#: Times that each step is taken, if there is time, and how long all may take in seconds.
ROUNDS, BUDGET_SECONDS = 5, 110.0

#: Tokens for which a pool has room at most: more than the steps of the design hold.
MOST_TOKENS = 2**17

#: Steps of so many tokens are taken once before they are timed, since what is set up on first use
#: is no part of them; in larger ones it counts for little.
_WARMED = 256

#: Steps of more seconds are taken twice at most.
_LONG = 0.5

_TO_THE_END = SamplingParams(ignore_eos=True)


@dataclass(slots=True)
class Timed:
    """A step of the design, and how long it took each time.

    Attributes:
        point: The step.
        parts: What it had to do.
        seconds: The times.
    """

    point: Point
    parts: StepParts
    seconds: list[float] = field(default_factory=list)

    @property
    def typical(self) -> float:
        """The lower median: what else the machine does now and then is no part of a step."""
        return median_low(self.seconds)


def disturbance(timed: Sequence[Timed]) -> float:
    """By how much steps took longer on average than they typically do, as a share of that.

    What else a machine does falls on single steps, which the typical times leave out; over a long
    run it adds up. Steps count that were timed at least three times, and none for more than thrice
    its typical time. 0 where there are none.
    """
    often = [one for one in timed if len(one.seconds) > 2]
    typical = sum(one.typical * len(one.seconds) for one in often)
    taken = sum(min(second, 3 * one.typical) for one in often for second in one.seconds)
    return max(0.0, taken / typical - 1) if often else 0.0


class Bench:
    """A loaded model and a pool on which steps are timed.

    Args:
        loaded: The model.
        config: How the engine keeps KV and forms its steps.

    Raises:
        KvhouseError: The pool cannot be built as described, or has no room for any step.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        spec = loaded.spec
        self.config = config
        self.limits = config.limits(spec)
        self.layout = KVLayout.of(spec, config.kv_format, config.block_size, dtype=loaded.dtype)
        length = min(self.limits.max_length, 1024)
        budget = self.limits.token_budget
        size = self.layout.pool_in(config.kv_memory, length, budget)
        each = max(1, self.layout.blocks_for(length, budget))
        self.size = PoolSize(min(size.blocks, each * (MOST_TOKENS // length)), size.slots)
        tokens = self.size.blocks * length // each if self.layout.groups else length
        self.points = design(tokens, self.limits)
        self._parts = Parts(spec, self.layout)
        kv = KVTensors(spec, self.layout, self.size, rotate=config.kv_rotation)
        self._fill(kv)
        self._executor = TorchExecutor.on(kv, loaded, config)
        ids = np.random.default_rng(0).integers(spec.vocab_size, size=self.limits.max_length)
        self._ids: list[int] = ids.tolist()

    @property
    def paths(self) -> Paths:
        """Which way the model's blocks are computed."""
        return self._executor.adapter.paths

    def _fill(self, kv: KVTensors) -> None:
        """Write to all of the pool: memory that nobody wrote to is read from one page of zeros."""
        if self.layout.block_bytes:
            empty = kv.read_block(0).zero_()
            for block in range(self.size.blocks):
                kv.write_block(block, empty)
        kv.states.zero_()

    def measure(
        self,
        *,
        rounds: int = ROUNDS,
        budget: float = BUDGET_SECONDS,
        on_step: Callable[[object], None] = lambda _: None,
        stop: Stop | None = None,
    ) -> list[Timed]:
        """Time every step of the design, round after round.

        The first round goes from small steps to large ones, and what the budget does not reach
        is left out; later rounds go in random orders, so that a machine that is slow for a while
        slows no one kind of steps. Long steps, on which disturbances even out, are taken again
        last, and once.

        Args:
            rounds: Times that each step is taken.
            budget: Seconds after which no step is begun.
            on_step: Called for each step.
            stop: Ends it early.

        Raises:
            KvhouseError: Not one step could be timed.
        """
        stop, began = stop or Stop(), time.monotonic()
        chance = np.random.default_rng(0)
        timed: list[Timed] = []
        plans: list[StepPlan] = []
        for point in self.points:
            plan = plan_of(point, self.layout, self.size, self.limits)
            if plan is None:
                on_step(None)
                continue
            if stop.asked or time.monotonic() - began > budget:
                break
            parts = self._parts.of([(row.first, row.count, row.samples) for row in plan.rows])
            if point.tokens <= _WARMED:
                self._time(plan)
            timed.append(Timed(point, parts, [self._time(plan)]))
            plans.append(plan)
            on_step(None)
        again = [place for place, one in enumerate(timed) if one.typical <= _LONG]
        later = [place for _ in range(rounds - 1) for place in chance.permutation(again)]
        if rounds > 1:
            later += [place for place, one in enumerate(timed) if one.typical > _LONG]
        for place in later:
            if stop.asked or time.monotonic() - began > budget:
                break
            timed[place].seconds.append(self._time(plans[place]))
            on_step(None)
        stop.cut_short = stop.asked
        if not timed:
            raise KvhouseError("calibration: no step could be timed: give it time and KV memory")
        return timed

    def _time(self, plan: StepPlan) -> float:
        for row in plan.rows:
            self._executor.add(row.request, self._ids[: row.first + row.count], _TO_THE_END)
        try:
            return self._executor.execute(plan).seconds
        finally:
            for row in plan.rows:
                self._executor.drop(row.request)
