"""The executor of replay: it computes nothing and says how long the step would take at least."""

from __future__ import annotations

from collections.abc import Sequence

from kvhouse.core.step import Sampled, StepPlan, StepResult
from kvhouse.costs import Roofline
from kvhouse.links import Link, transfer_cost


class ModelledExecutor:
    """Answers every step with its roofline time and that of its transfers.

    Rows wait for the step's loads; its stores and moves go on beside them.

    A sampling row always gives a token that does not stop: how long an output gets is known from
    the trace and stands in the request's ``max_new_tokens``. No transfer fails.

    Args:
        roofline: What rows take.
        links: The link of each tier below the pool, in their order.
    """

    timing = "modelled"

    def __init__(self, roofline: Roofline, links: Sequence[Link] = ()) -> None:
        self.roofline = roofline
        self.links = tuple(links)

    def execute(self, plan: StepPlan) -> StepResult:
        """The least time of ``plan``, and one token for each row that samples."""
        sampled = tuple(Sampled(row.request) for row in plan.rows if row.samples)
        transfers = transfer_cost(plan, self.roofline.layout.block_bytes, self.links)
        return StepResult(transfers.seconds(self.roofline.step(plan).seconds), sampled)
