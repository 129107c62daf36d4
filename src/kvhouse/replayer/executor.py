"""The executor of replay: it computes nothing and says how long the step would take at least."""

from __future__ import annotations

from kvhouse.core.step import Sampled, StepPlan, StepResult
from kvhouse.costs import Roofline


class ModelledExecutor:
    """Answers every step with its roofline time.

    A sampling row always gives a token that does not stop: how long an output gets is known from
    the trace and stands in the request's ``max_new_tokens``.
    """

    timing = "modelled"

    def __init__(self, roofline: Roofline) -> None:
        self.roofline = roofline

    def execute(self, plan: StepPlan) -> StepResult:
        """The least time of ``plan``, and one token for each row that samples."""
        sampled = tuple(Sampled(row.request) for row in plan.rows if row.samples)
        return StepResult(self.roofline.step(plan).seconds, sampled)
