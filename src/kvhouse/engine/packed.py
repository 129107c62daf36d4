"""A step's rows packed into one sequence of tokens, as a model's forward pass takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kvhouse.core.step import Row, StepPlan
from kvhouse.engine.watch import UNWATCHED, Watch


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A row of the plan and where its tokens lie in the pack: ``start`` to ``stop``."""

    row: Row
    start: int

    @property
    def stop(self) -> int:
        """One past the last token's place in the pack."""
        return self.start + self.row.count

    @property
    def length(self) -> int:
        """Tokens that the row's last query sees: all of the request's so far."""
        return self.row.first + self.row.count

    def slots(self, block_size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The slots of the request's tokens 0 to ``length``."""
        table = np.asarray(self.row.tables[0], dtype=np.int64)
        places = table[:, None] * block_size + np.arange(block_size, dtype=np.int64)
        return places.reshape(-1)[: self.length]


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One step for a model: ``T`` tokens of all rows, of which ``S`` give a new token.

    Attributes:
        input_ids: Token ids, int64 ``[1, T]``.
        position_ids: Each token's position in its own request, int64 ``[1, T]``.
        last: Places of the last tokens of the rows that sample, int64 ``[S]``.
        rows: The plan's rows, in its order.
        known: Requests' known token ids, for whoever computes without a pool.
        watch: Is told what the time goes to.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    last: torch.Tensor
    rows: tuple[PackedRow, ...]
    known: Mapping[int, Sequence[int]] = field(default_factory=dict)
    watch: Watch = UNWATCHED

    def alone(self) -> Iterator[PackedStep]:
        """Each row as a step of its own."""
        for packed in self.rows:
            span = slice(packed.start, packed.stop)
            last = [packed.row.count - 1] if packed.row.samples else []
            yield PackedStep(
                self.input_ids[:, span],
                self.position_ids[:, span],
                torch.tensor(last, dtype=torch.int64),
                (PackedRow(packed.row, 0),),
                watch=self.watch,
            )


def pack(
    plan: StepPlan, tokens: Mapping[int, Sequence[int]], watch: Watch = UNWATCHED
) -> PackedStep:
    """Fill a plan, which names tokens by position only, with their values.

    Args:
        plan: The step; at least one row.
        tokens: Every request's known token ids.
        watch: Is told what the time goes to.
    """
    ids: list[int] = []
    positions: list[int] = []
    rows = []
    for row in plan.rows:
        rows.append(PackedRow(row, len(ids)))
        end = row.first + row.count
        ids.extend(tokens[row.request][row.first : end])
        positions.extend(range(row.first, end))
    last = [packed.stop - 1 for packed in rows if packed.row.samples]
    return PackedStep(
        torch.tensor([ids]),
        torch.tensor([positions]),
        torch.tensor(last, dtype=torch.int64),
        tuple(rows),
        tokens,
        watch,
    )
