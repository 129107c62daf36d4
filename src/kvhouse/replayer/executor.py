"""The executor of replay: it computes nothing and says how long the step would take at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kvhouse.core.step import Executor, Sampled, StepPlan, StepResult
from kvhouse.core.stretch import PlainRow
from kvhouse.costs import FittedSteps, Line, Roofline, Sums
from kvhouse.links import Link, transfer_cost
from kvhouse.replayer.stretches import Steps


@runtime_checkable
class LeapingExecutor(Executor, Protocol):
    """An executor that can tell the times of many steps from what they have in common.

    Its steps give every sampling row a token that does not stop, and have no transfers.
    """

    @property
    def leaps(self) -> bool:
        """Whether it can tell; otherwise ``line`` must not be called."""
        ...

    def line(
        self,
        decoding: int,
        before: int,
        rows: Sequence[PlainRow],
        seen: Sequence[tuple[int, int]] = (),
        *,
        going_on: bool = False,
    ) -> Line:
        """The times of a stretch's steps, one after the other; see ``Roofline.line``."""
        ...

    def look_at(self, steps: Steps) -> None:
        """Look at steps that were taken."""
        ...


class ModelledExecutor:
    """Answers every step with the time of its rows and that of its transfers.

    Rows wait for the step's loads; its stores and moves go on beside them.

    A sampling row always gives a token that does not stop: how long an output gets is known from
    the trace and stands in the request's ``max_new_tokens``. No transfer fails.

    Args:
        roofline: What rows take: at least, or at the rates of a profile.
        links: The link of each tier below the pool, in their order.
        sums: What ranks spend beside it, where the roofline is that of one of several.
    """

    timing = "modelled"

    def __init__(
        self, roofline: Roofline | FittedSteps, links: Sequence[Link] = (), sums: Sums | None = None
    ) -> None:
        self.roofline = roofline
        self.sums = sums if sums and sums.counted else None
        #: The times of a stretch's steps.
        self.line = self._summing_line if self.sums else roofline.line
        self.links = tuple(links)

    def execute(self, plan: StepPlan) -> StepResult:
        """The least time of ``plan``, and one token for each row that samples."""
        sampled = tuple(Sampled(row.request) for row in plan.rows if row.samples)
        transfers = transfer_cost(plan, self.roofline.layout.block_bytes, self.links)
        seconds = self.roofline.step(plan).seconds
        if self.sums:
            seconds += self.sums.seconds(plan.tokens)
        return StepResult(transfers.seconds(seconds), sampled)

    def _summing_line(
        self,
        decoding: int,
        before: int,
        rows: Sequence[PlainRow],
        seen: Sequence[tuple[int, int]] = (),
        *,
        going_on: bool = False,
    ) -> Line:
        """As the roofline's, with the sums of its tokens, of which every step has as many."""
        assert self.sums is not None, "it is taken only where there are sums"
        line = self.roofline.line(decoding, before, rows, seen, going_on=going_on)
        line.beside = self.sums.seconds(decoding + sum(count for _, count, _ in rows))
        return line

    @property
    def leaps(self) -> bool:
        """Whether steps of the model grow evenly."""
        return self.roofline.linear

    def look_at(self, steps: Steps) -> None:
        """Nothing to see: its times are its own."""
