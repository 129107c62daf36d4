"""What no drive can do, whatever model of time stands behind it.

The figures here are worked out anew from the model's description and the plan's rows, not by
``Roofline`` nor by the allocator, so that a mistake in one of these is an error and not a table.
Where something is not worth working out, less is asked, never more: the guard knows no false alarm.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, mul

from kvhouse.core.memory import KVMemory
from kvhouse.core.step import Executor, StepPlan, StepResult
from kvhouse.core.tiers import Tiers
from kvhouse.costs import Roofline
from kvhouse.layout import KVLayout
from kvhouse.links import Link
from kvhouse.spec.model import DTYPE_BYTES
from kvhouse.spec.reach import Reach

#: Block tables are looked through, block by block, in one step of so many.
EVERY = 64

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
            raise PhysicsError(
                f"step {plan.index} took {result.seconds} s, but moves {moved:,.0f} bytes and "
                f"computes {flops:,} FLOPs, for which this device needs {floor} s at least"
            )
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
            raise PhysicsError(
                f"step {plan.index}: {tokens:,} tokens of {self._token_bytes:,} bytes are said to "
                f"lie in {held:,} blocks of {block:,} bytes"
            )
        if plan.index % EVERY == 0:
            self._check_tables(plan)
        if memory.tiers:
            self._check_tiers(plan, memory.tiers)

    def _check_tiers(self, plan: StepPlan, tiers: Tiers) -> None:
        sizes = [tier.config.bytes // self._memory.layout.block_bytes for tier in tiers]
        places = [(move.tier + 1, move.into) for move in plan.moves]
        places += [(move.tier, move.slot) for move in plan.moves]
        places += [(place.tier, place.slot) for place in (*plan.loads, *plan.stores)]
        if not all(0 <= slot < sizes[tier] for tier, slot in places):
            raise PhysicsError(f"step {plan.index}: a transfer names a slot outside its tier")

    def _check_tables(self, plan: StepPlan) -> None:
        ids = list(chain.from_iterable(table for row in plan.rows for table in row.tables))
        distinct = set(ids)
        total = self._memory.total_blocks
        if len(distinct) < len(ids) and not self._memory.sharing:
            raise PhysicsError(f"step {plan.index}: a block lies in two tables")
        if distinct and not 0 <= min(distinct) <= max(distinct) < total:
            raise PhysicsError(f"step {plan.index}: a table names a block outside the pool")
