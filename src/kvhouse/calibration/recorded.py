"""What an executor answered, kept, and given again to a replay of the same scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvhouse.core.step import Executor, Row, StepPlan, StepResult
from kvhouse.errors import KvhouseError
from kvhouse.replayer.logged import PlanFingerprint


@dataclass(slots=True)
class Record:
    """A drive's steps.

    Attributes:
        rows: For each step, its rows without their tables: first position, tokens, and whether
            they sample.
        results: What the executor answered.
        plans: A fingerprint of all plans.
    """

    rows: list[tuple[tuple[int, int, bool], ...]] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    plans: PlanFingerprint = field(default_factory=PlanFingerprint)

    def add(self, plan: StepPlan, result: StepResult) -> None:
        """Take the next step in."""
        self.rows.append(tuple(map(_plain, plan.rows)))
        self.results.append(result)
        self.plans.add(plan)


class Recording:
    """An executor that keeps what another one is asked and answers.

    Args:
        executor: The other one.
        record: Where it is kept.
    """

    def __init__(self, executor: Executor, record: Record) -> None:
        self.timing = executor.timing
        self._executor = executor
        self._record = record

    def execute(self, plan: StepPlan) -> StepResult:
        """Have the step executed."""
        result = self._executor.execute(plan)
        self._record.add(plan, result)
        return result


class Diverged(KvhouseError):
    """A replay of recorded steps asked for another step than was recorded."""


class Recorded:
    """An executor that answers each step as it was recorded, and computes nothing.

    Args:
        results: The recorded answers, in order.
    """

    timing = "measured"

    def __init__(self, results: Sequence[StepResult]) -> None:
        self._results = results
        self._next = 0

    def execute(self, plan: StepPlan) -> StepResult:
        """The recorded answer.

        Raises:
            Diverged: The plan is not the one that was recorded.
        """
        if self._next == len(self._results):
            raise Diverged(f"step {plan.index}: the run had ended before it")
        result = self._results[self._next]
        sampling = tuple(row.request for row in plan.rows if row.samples)
        if not plan.void(result.failed_loads) and sampling != tuple(
            sampled.request for sampled in result.sampled
        ):
            raise Diverged(f"step {plan.index}: other requests give a token than in the run")
        self._next += 1
        return result


def _plain(row: Row) -> tuple[int, int, bool]:
    return row.first, row.count, row.samples
