"""A step as data: what the scheduler asks for and what an executor answers."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Protocol

BlockTable = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Consecutive tokens of one request to be computed in this step.

    Attributes:
        request: The request's id.
        first: Position of the first token, counted from 0.
        count: Number of tokens; 1 for a decoding request.
        samples: Whether the last token's logits give a new token.
        tables: For each layer group, the request's block table. Entry ``i`` holds the positions
            from ``(start + i) * block_size`` on, by the group's own start and block size.
        starts: For each layer group, the index of the table's first entry: more than 0 where
            blocks before it have passed out of the layers' reach.
        slot: Where the request's state lies; None where there is none.
    """

    request: int
    first: int
    count: int
    samples: bool
    tables: tuple[BlockTable, ...]
    starts: tuple[int, ...] = (0,)
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """One block's bytes on their way between the pool and a tier below it.

    Attributes:
        tier: Number of the tier; 0 lies next below the pool.
        slot: Place in the tier, from 0 to below its capacity in blocks.
        block: The block of the pool.
    """

    tier: int
    slot: int
    block: int


@dataclass(frozen=True, slots=True)
class Move:
    """One block's bytes on their way from a tier that gives them up to the next tier below.

    Attributes:
        tier: Number of the tier that gives them up.
        slot: Their place in it.
        into: Their place in tier ``tier + 1``.
    """

    tier: int
    slot: int
    into: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step for an executor. It names tokens by position only and holds no token values.

    An executor carries out the moves in their order, then the stores, then the loads, then the
    rows. In this order a place can be given away and taken again within one plan: a move reads
    its slot before a store overwrites it, and a store reads its block before a load or a row
    does. No two stores write one slot and no two loads one block, and what a load reads is
    written by no move or store of its plan, so each of the two may be done in any order.

    Attributes:
        index: Number of the step, counted from 0.
        rows: What to compute, oldest request first.
        seals: Blocks that this step fills to the last token.
        admitted: Requests that got memory in this step.
        preempted: Requests that lost theirs before it.
        loads: Blocks to be filled from a tier.
        stores: Blocks whose content, as the step before left it, goes into a tier.
        moves: What tiers give up to the tier below.
    """

    index: int
    rows: tuple[Row, ...]
    seals: tuple[int, ...]
    admitted: tuple[int, ...]
    preempted: tuple[int, ...]
    loads: tuple[Transfer, ...] = ()
    stores: tuple[Transfer, ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens computed in this step, over all rows."""
        return sum(row.count for row in self.rows)

    def void(self, failed_loads: Collection[int]) -> frozenset[int]:
        """The requests whose rows cannot be computed because these blocks were not loaded.

        A block that a plan loads stands in the tables of the rows that read it and nowhere else.
        """
        if not failed_loads:
            return frozenset()
        failed = frozenset(failed_loads)
        return frozenset(
            row.request
            for row in self.rows
            if not all(failed.isdisjoint(table) for table in row.tables)
        )

    def encode(self) -> bytes:
        """One canonical line of JSON, so that two plan logs can be compared byte for byte.

        Kinds of transfers that the plan has none of are left out.
        """
        line = asdict(self)
        for name in ("loads", "stores", "moves"):
            if not line[name]:
                del line[name]
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token that a sampling row gave; ``stop`` when it ends the request by its content."""

    request: int
    stop: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step.

    Attributes:
        seconds: How long it took, measured or modelled as the executor says.
        sampled: One entry for each row that samples and is not void, in the plan's order.
        failed_loads: Blocks that could not be loaded. Every row that reads one of them is void
            (``StepPlan.void``): it is not computed, and its request comes again in a later plan.
        failed_stores: Stores of the plan that came to nothing.
        failed_moves: Moves of the plan that came to nothing.
    """

    seconds: float
    sampled: tuple[Sampled, ...]
    failed_loads: tuple[int, ...] = ()
    failed_stores: tuple[Transfer, ...] = ()
    failed_moves: tuple[Move, ...] = ()


class Executor(Protocol):
    """Whoever carries a step out: a cost model on a virtual clock, or tensors and kernels."""

    #: ``"modelled"`` or ``"measured"``: what ``StepResult.seconds`` is.
    timing: str

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out the transfers of ``plan`` and compute its rows."""
        ...
