"""Steps without a clock: requests advance and take memory, and nothing is computed."""

from __future__ import annotations

from kvhouse.core.scheduler import Scheduler
from kvhouse.core.step import Sampled, StepPlan, StepResult


class CountingExecutor:
    """Answers each step as if it took no time; every request generates all that it may."""

    timing = "modelled"

    def execute(self, plan: StepPlan) -> StepResult:
        """A token for each row that samples."""
        return StepResult(0.0, tuple(Sampled(row.request) for row in plan.rows if row.samples))


def advance(scheduler: Scheduler, plan: StepPlan | None = None) -> StepPlan:
    """Carry out a step, and give back its plan.

    Args:
        scheduler: Who planned it.
        plan: What was planned; by default it is planned now.
    """
    plan = plan or scheduler.schedule()
    scheduler.carry_out(plan, CountingExecutor())
    return plan
