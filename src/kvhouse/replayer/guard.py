"""What no drive can do, whatever model of time stands behind it.

The figures here are worked out anew from the model's description and the plan's rows, not by
``Roofline`` nor by the allocator, so that a mistake in one of these is an error and not a table.
Where something is not worth working out, less is asked, never more: the guard knows no false alarm.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter, mul
from typing import Protocol

import numpy as np

from kvhouse.core.leap import Stretch
from kvhouse.core.memory import KVMemory
from kvhouse.core.step import Executor, StepPlan, StepResult
from kvhouse.costs import Line, Roofline
from kvhouse.layout import KVLayout
from kvhouse.replayer.executor import LeapingExecutor
from kvhouse.spec.model import DTYPE_BYTES
from kvhouse.spec.reach import Reach

#: Block tables are looked through, block by block, in one step of so many.
EVERY = 64
#: Steps of leaps are looked at so many at a time.
_CHUNK = 1 << 15

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
        self, executor: Executor, roofline: Roofline, weight_dtype: str | None = None
    ) -> None:
        """Guard ``executor``.

        Args:
            executor: Whose steps are looked at.
            roofline: Names the model, its layout, the device and the rates; its sums are not used.
            weight_dtype: How the weights are stored; by default as published.
        """
        self.timing = executor.timing
        self._executor = executor
        self._leaping = executor if isinstance(executor, LeapingExecutor) else None
        spec, layout = roofline.spec, roofline.layout
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
        self._checked = LeapChecks(self._bandwidth, self._flop_rate)
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
        return result

    @property
    def leaps(self) -> bool:
        """Whether the executor can tell the times of many steps at once."""
        return self._leaping is not None and self._leaping.leaps

    def line(self, stretch: Stretch) -> Line:
        """The executor's times of a stretch's steps."""
        assert self._leaping is not None, "it has not said that it leaps"
        return self._leaping.line(stretch)

    def taken(self, stretch: Stretch, seconds: Sequence[float]) -> None:
        """Note what a stretch's steps move and compute at least; every step is looked at later.

        Raises:
            PhysicsError: A step noted earlier took less time than it can.
        """
        tokens, before, inner = stretch.tokens, stretch.before, stretch.decoding
        samples, pairs = stretch.decoding, 0
        for first, count, sampled in stretch.rows:
            before += first
            samples += sampled
            pairs += count * first
            inner += (count * count + count) // 2
        entry = pair = 0
        for reach, pair_flops in self._pair_flops.items():
            if reach.kind == "all":
                pair += pair_flops
                entry += self._entries[reach]
        rows = stretch.decoding + len(stretch.rows)
        self._checked.note(
            stretch.index,
            self._body_bytes + self._state_bytes * rows + entry * (before + tokens),
            entry * stretch.decoding,
            2 * (self._body * tokens + self._head * samples)
            + pair * (stretch.before + pairs + inner),
            pair * stretch.decoding,
            seconds,
        )

    def settle(self) -> None:
        """Look at all steps that were noted.

        Raises:
            PhysicsError: One took less time than it can.
        """
        self._checked.settle()

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


class LeapChecks:
    """What steps need at least beside what they took, looked at many at a time."""

    def __init__(self, bandwidth: float, flop_rate: float) -> None:
        self._bandwidth = bandwidth
        self._flop_rate = flop_rate
        self._noted, self._seconds = array("d"), array("d")

    def note(
        self,
        index: int,
        moved: float,
        more_moved: float,
        flops: int,
        more_flops: int,
        seconds: Sequence[float],
    ) -> None:
        """Note steps in a row, by what the first needs and each later one more."""
        self._noted.extend((index, len(seconds), moved, more_moved, flops, more_flops))
        self._seconds.extend(seconds)
        if len(self._seconds) >= _CHUNK:
            self.settle()

    def settle(self) -> None:
        """Look at all of them; see ``StepGuard``."""
        if not self._seconds:
            return
        table, seconds = np.frombuffer(self._noted).reshape(-1, 6), np.frombuffer(self._seconds)
        self._noted, self._seconds = array("d"), array("d")
        steps = table[:, 1].astype(np.int64)
        index, _, moved, more_moved, flops, more_flops = np.repeat(table, steps, axis=0).T
        later = np.arange(len(seconds)) - np.repeat(np.cumsum(steps) - steps, steps)
        moved, flops = moved + later * more_moved, flops + later * more_flops
        floors = np.maximum(moved / self._bandwidth, flops / self._flop_rate)
        wrong = np.flatnonzero(~(seconds >= floors * (1 - _ROUNDING)))
        if len(wrong):
            at = wrong[0]
            raise PhysicsError(
                _too_fast(
                    int(index[at] + later[at]), seconds[at], moved[at], int(flops[at]), floors[at]
                )
            )


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

    def watch(self, stretch: Stretch) -> None:
        """Look at the steps of a stretch, now or later."""
        ...

    def settle(self) -> None:
        """Look at all that was left for later."""
        ...


class ResidencyGuard:
    """Sees to it that what rows keep has room in the pool, each block once or shared."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        layout: KVLayout = memory.layout
        whole = [group for group in layout.groups if group.reach.kind == "all"]
        self._token_bytes = sum(group.entry_bytes for group in whole if group.stride == 1)
        self._leaps = 0
        self._noted, self._free = array("q"), array("q")

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
            tables = (table for row in plan.rows for table in row.tables)
            self._check_tables(plan.index, chain.from_iterable(tables))

    def watch(self, stretch: Stretch) -> None:
        """Note the steps of a stretch, and look at the tables in one of ``EVERY`` stretches.

        Raises:
            PhysicsError: As for ``check``.
        """
        self._noted.extend(
            (stretch.index, len(stretch.free), stretch.written, stretch.decoding, stretch.saved)
        )
        self._free.extend(stretch.free)
        if len(self._free) >= _CHUNK:
            self.settle()
        self._leaps += 1
        if self._leaps % EVERY == 0:
            holders = map(self._memory.holding, self._memory.holders)
            self._check_tables(
                stretch.index, chain.from_iterable(holding.blocks() for holding in holders)
            )

    def settle(self) -> None:
        """Look at all steps that were noted.

        Raises:
            PhysicsError: As for ``check``.
        """
        if not self._free:
            return
        table = np.frombuffer(self._noted, dtype=np.int64).reshape(-1, 5)
        free = np.frombuffer(self._free, dtype=np.int64)
        self._noted, self._free = array("q"), array("q")
        index, steps, written, more, saved = table.T
        later = np.arange(len(free)) - np.repeat(np.cumsum(steps) - steps, steps)
        block, total = self._memory.layout.block_bytes, self._memory.total_blocks
        tokens = np.repeat(written, steps) + later * np.repeat(more, steps)
        held = total - free + np.repeat(saved, steps)
        wrong = np.flatnonzero((tokens * self._token_bytes > held * block) | (free < 0))
        if len(wrong):
            at = wrong[0]
            step = np.repeat(index, steps)[at] + later[at]
            raise PhysicsError(_no_room(step, tokens[at], self._token_bytes, held[at], block))

    def _check_tables(self, step: int, blocks: Iterable[int]) -> None:
        ids = list(blocks)
        distinct = set(ids)
        total = self._memory.total_blocks
        if len(distinct) < len(ids) and not self._memory.sharing:
            raise PhysicsError(f"step {step}: a block lies in two tables")
        if distinct and not 0 <= min(distinct) <= max(distinct) < total:
            raise PhysicsError(f"step {step}: a table names a block outside the pool")


def _no_room(step: int, tokens: int, token_bytes: int, held: int, block: int) -> str:
    return (
        f"step {step}: {tokens:,} tokens of {token_bytes:,} bytes are said to lie in {held:,} "
        f"blocks of {block:,} bytes"
    )
