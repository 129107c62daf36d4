"""What no drive can do, whatever model of time stands behind it.

The figures here are worked out anew from the model's description and the plan's rows, not by
``Roofline`` nor by the allocator, so that a mistake in one of these is an error and not a table.
Where something is not worth working out, less is asked, never more: the guard knows no false alarm.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, mul
from typing import Protocol

import numpy as np

from kvhouse.core.memory import KVMemory
from kvhouse.core.step import Executor, StepPlan, StepResult
from kvhouse.core.tiers import Tiers
from kvhouse.costs import Line, Roofline
from kvhouse.layout import KVLayout
from kvhouse.links import Link
from kvhouse.replayer.executor import LeapingExecutor
from kvhouse.replayer.stretches import CHUNK, ROW_SUMS, Steps
from kvhouse.spec.model import DTYPE_BYTES
from kvhouse.spec.reach import Reach

#: Block tables are looked through, block by block, in one step of so many, or one stretch.
EVERY = 256

# Called once for each row of each step.
_FIRST, _COUNT, _SAMPLES = map(attrgetter, ("first", "count", "samples"))

#: Two sums of the same floats may differ by this share.
_ROUNDING = 1e-9


class PhysicsError(AssertionError):
    """A drive that cannot be: a bug in kvhouse, never the user's doing."""


class StepGuard:
    """An executor whose steps are never faster than what it is given to move and to compute.

    Attributes:
        timing: As the executor's.
    """

    def __init__(
        self,
        executor: Executor,
        roofline: Roofline,
        weight_dtype: str | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        """Guard ``executor``.

        Args:
            executor: Whose steps are looked at.
            roofline: Names the model, its layout, the device and the rates; its sums are not used.
            weight_dtype: How the weights are stored; by default as published.
            links: The link of each tier below the pool, in their order.
        """
        self.timing = executor.timing
        self._executor = executor
        self._leaping = executor if isinstance(executor, LeapingExecutor) else None
        spec, layout = roofline.spec, roofline.layout
        self._block_bytes = layout.block_bytes
        self._links = tuple(link.bandwidth for link in links)
        self._bandwidth = roofline.device.bandwidth
        self._flop_rate = roofline.flop_rate or math.inf  # where none is known, none is asked for
        parameters, multiplied = spec.counted()
        self._head = spec.vocab_size * spec.hidden_size
        self._body = multiplied - self._head
        # What is not in the products is at most as wide as the model is published, or all weights
        # are one width.
        stored = spec.weight_bytes(weight_dtype)
        widest = max(stored / parameters, DTYPE_BYTES.get(spec.dtype, 0))
        self._body_bytes = max(0.0, stored - (parameters - self._body) * widest)
        self._entries: Counter[Reach] = Counter()
        self._pair_flops: Counter[Reach] = Counter()
        self._state_bytes = 0
        kept = {kind.reach for _, kind in layout.kinds}
        for part in chain.from_iterable(layer.parts for layer in spec.layers):
            self._state_bytes += part.state_bytes(layout.dtype)
            if part.stride == 1 and part.attended is None and part.reach in kept:
                self._pair_flops[part.reach] += part.attention_flops(1)
                self._entries[part.reach] += part.token_bytes(layout.format, layout.dtype)

    def execute(self, plan: StepPlan) -> StepResult:
        """Have ``plan`` executed.

        Raises:
            PhysicsError: It took less time than it can.
        """
        result = self._executor.execute(plan)
        moved, flops = self.least(plan)
        floor = max(moved / self._bandwidth, flops / self._flop_rate)
        if not result.seconds >= floor * (1 - _ROUNDING):
            raise PhysicsError(_too_fast(plan.index, result.seconds, moved, flops, floor))
        transfer = self.least_transfer(plan)
        if not result.seconds >= transfer * (1 - _ROUNDING):
            raise PhysicsError(
                f"step {plan.index} took {result.seconds} s, but loads {len(plan.loads):,}, stores "
                f"{len(plan.stores):,} and moves {len(plan.moves):,} blocks of "
                f"{self._block_bytes:,} bytes, for which the links need {transfer} s at least"
            )
        return result

    def least_transfer(self, plan: StepPlan) -> float:
        """Seconds that the busiest link needs at least in one direction, at full bandwidth."""
        read = Counter(load.tier for load in plan.loads)
        written = Counter(store.tier for store in plan.stores)
        written.update(move.tier + 1 for move in plan.moves)
        blocks = chain(read.items(), written.items())
        return max((n * self._block_bytes / self._links[tier] for tier, n in blocks), default=0.0)

    @property
    def leaps(self) -> bool:
        """Whether the executor can tell the times of many steps at once."""
        return self._leaping is not None and self._leaping.leaps

    @property
    def line(self) -> Callable[..., Line]:
        """Gives the executor's times of a stretch's steps."""
        assert self._leaping is not None, "it has not said that it leaps"
        return self._leaping.line

    def look_at(self, steps: Steps) -> None:
        """Look at steps of stretches that were taken.

        Raises:
            PhysicsError: One took less time than it can.
        """
        later, seconds = steps.later, steps.seconds
        whole = [reach for reach in self._pair_flops if reach.kind == "all"]
        entry = float(sum(self._entries[reach] for reach in whole))
        pair = float(sum(self._pair_flops[reach] for reach in whole))
        names = ("decoding", "later", "before", "written", "tokens", "idle", *CHUNK, *ROW_SUMS)
        of = {name: steps.spread(name) for name in names}
        # Every later step reads what was written before it, but for the tokens of the idle.
        first, more, chunk = later == 0, of["later"], of["chunk"]
        met = of["written"] - of["idle"] + later * (more + chunk)
        reached = of["chunk_first"] + later * chunk  # the chunk's last token meets so many
        met_by_chunk = chunk * reached - (chunk * chunk - chunk) // 2
        rows = np.where(first, of["decoding"] + of["rows"], more + (chunk > 0))
        tokens = np.where(first, of["tokens"], more + chunk)
        samples = np.where(first, of["decoding"] + of["samples"], more)
        pairs = of["before"] + of["decoding"] + of["products"] + of["pairs"]
        pairs = np.where(first, pairs, met - reached + met_by_chunk)
        met = np.where(first, of["before"] + of["firsts"] + tokens, met)
        moved = self._body_bytes + self._state_bytes * rows + entry * met
        flops = 2.0 * (float(self._body) * tokens + float(self._head) * samples)
        flops += pair * pairs
        floors = np.maximum(moved / self._bandwidth, flops / self._flop_rate)
        wrong = np.flatnonzero(~(seconds >= floors * (1 - _ROUNDING)))
        if len(wrong):
            at = wrong[0]
            step = int(steps.spread("index")[at] + later[at])
            raise PhysicsError(_too_fast(step, seconds[at], moved[at], int(flops[at]), floors[at]))

    def least(self, plan: StepPlan) -> tuple[float, int]:
        """Bytes and FLOPs that the rows of ``plan`` move and compute at least."""
        firsts = list(map(_FIRST, plan.rows))
        counts = list(map(_COUNT, plan.rows))
        tokens, before = sum(counts), sum(firsts)
        moved = self._body_bytes + self._state_bytes * len(firsts)
        flops = 2 * (self._body * tokens + self._head * sum(map(_SAMPLES, plan.rows)))
        # Where every row is one token, products of counts are the counts themselves.
        single = tokens == len(counts)
        for reach, pair_flops in self._pair_flops.items():
            entry = self._entries[reach]
            if reach.kind == "all":
                # The token at position p meets p + 1 tokens, itself among them.
                inner = tokens if single else (sum(map(mul, counts, counts)) + tokens) // 2
                flops += pair_flops * (
                    (before if single else sum(map(mul, firsts, counts))) + inner
                )
                moved += entry * (before + tokens)
            elif reach.kind == "window":
                most = reach.tokens - 1
                flops += pair_flops * sum(
                    count * min(first, most) for first, count in zip(firsts, counts, strict=True)
                )
                moved += entry * sum(min(first, most) for first in firsts)
        return moved, flops


def _too_fast(step: int, seconds: float, moved: float, flops: int, floor: float) -> str:
    return (
        f"step {step} took {seconds} s, but moves {moved:,.0f} bytes and computes {flops:,} FLOPs, "
        f"for which this device needs {floor} s at least"
    )


class Guard(Protocol):
    """Looks at steps, before they are carried out or as stretches that were taken."""

    def check(self, plan: StepPlan) -> None:
        """Look at a step."""
        ...

    def look_at(self, steps: Steps) -> None:
        """Look at steps of stretches that were taken."""
        ...

    def look_at_tables(self, step: int) -> None:
        """Look at the block tables as they are."""
        ...


class ResidencyGuard:
    """Sees to it that what rows keep has room in the pool, each block once or shared."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        layout: KVLayout = memory.layout
        whole = [group for group in layout.groups if group.reach.kind == "all"]
        self._token_bytes = sum(group.entry_bytes for group in whole if group.stride == 1)

    def check(self, plan: StepPlan) -> None:
        """Look at a step.

        Raises:
            PhysicsError: Its rows keep more than the pool holds, or blocks that it has not.
        """
        memory = self._memory
        tokens = sum(map(_FIRST, plan.rows)) + sum(map(_COUNT, plan.rows))
        saved = sum(memory.sharing.pool.saved_blocks) if memory.sharing else 0
        held = memory.total_blocks - memory.free_blocks + saved
        block = memory.layout.block_bytes
        if tokens * self._token_bytes > held * block or held - saved > memory.total_blocks:
            raise PhysicsError(_no_room(plan.index, tokens, self._token_bytes, held, block))
        if plan.index % EVERY == 0:
            self._check_tables(plan.index, [table for row in plan.rows for table in row.tables])
        if memory.tiers:
            self._check_tiers(plan, memory.tiers)

    def _check_tiers(self, plan: StepPlan, tiers: Tiers) -> None:
        sizes = [tier.config.bytes // self._memory.layout.block_bytes for tier in tiers]
        places = [(move.tier + 1, move.into) for move in plan.moves]
        places += [(move.tier, move.slot) for move in plan.moves]
        places += [(place.tier, place.slot) for place in (*plan.loads, *plan.stores)]
        if not all(0 <= slot < sizes[tier] for tier, slot in places):
            raise PhysicsError(f"step {plan.index}: a transfer names a slot outside its tier")

    def look_at(self, steps: Steps) -> None:
        """Look at steps of stretches that were taken.

        Raises:
            PhysicsError: As for ``check``.
        """
        free = steps.free(len(self._memory.layout.groups))
        block, total = self._memory.layout.block_bytes, self._memory.total_blocks
        more = steps.spread("later") + steps.spread("chunk")
        tokens = steps.spread("written") + steps.later * more
        held = total - free + steps.spread("saved")
        wrong = np.flatnonzero((tokens * self._token_bytes > held * block) | (free < 0))
        if len(wrong):
            at = wrong[0]
            step = steps.spread("index")[at] + steps.later[at]
            raise PhysicsError(_no_room(step, tokens[at], self._token_bytes, held[at], block))

    def look_at_tables(self, step: int) -> None:
        """Look at the block tables as they are.

        Raises:
            PhysicsError: A block lies in two of them, or outside the pool.
        """
        holdings = map(self._memory.holding, self._memory.holders)
        self._check_tables(step, [table.ids for holding in holdings for table in holding.tables])

    def _check_tables(self, step: int, tables: Sequence[Sequence[int]]) -> None:
        held = np.fromiter(chain.from_iterable(tables), dtype=np.int64)
        if not len(held):
            return
        if not 0 <= held.min() <= held.max() < self._memory.total_blocks:
            raise PhysicsError(f"step {step}: a table names a block outside the pool")
        if not self._memory.sharing:
            seen = np.zeros(self._memory.total_blocks, dtype=np.bool_)
            seen[held] = True
            if np.count_nonzero(seen) < len(held):
                raise PhysicsError(f"step {step}: a block lies in two tables")


def _no_room(step: int, tokens: int, token_bytes: int, held: int, block: int) -> str:
    return (
        f"step {step}: {tokens:,} tokens of {token_bytes:,} bytes are said to lie in {held:,} "
        f"blocks of {block:,} bytes"
    )
