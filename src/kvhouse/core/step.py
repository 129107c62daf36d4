"""A step as data: what the scheduler asks for and what an executor answers."""

from __future__ import annotations

import json
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
class StepPlan:
    """One step for an executor. It names tokens by position only and holds no token values.

    Attributes:
        index: Number of the step, counted from 0.
        rows: What to compute, oldest request first.
        seals: Blocks that this step fills to the last token.
        admitted: Requests that got memory in this step.
        preempted: Requests that lost theirs before it.
    """

    index: int
    rows: tuple[Row, ...]
    seals: tuple[int, ...]
    admitted: tuple[int, ...]
    preempted: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens computed in this step, over all rows."""
        return sum(row.count for row in self.rows)

    def encode(self) -> bytes:
        """One canonical line of JSON, so that two plan logs can be compared byte for byte."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


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
        sampled: One entry for each row that samples, in the plan's order.
    """

    seconds: float
    sampled: tuple[Sampled, ...]


class Executor(Protocol):
    """Whoever carries a step out: a cost model on a virtual clock, or tensors and kernels."""

    #: ``"modelled"`` or ``"measured"``: what ``StepResult.seconds`` is.
    timing: str

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute every row of ``plan``."""
        ...
