"""A run held against its prediction: exactly, given its step times, and by the profile alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from kvhouse.calibration.recorded import Diverged, Record, Recorded, Recording
from kvhouse.core.step import StepPlan
from kvhouse.costs.fitted import FittedSteps
from kvhouse.errors import KvhouseError
from kvhouse.links import Link
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.logged import PlanFingerprint
from kvhouse.replayer.recorder import Recorder
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import Distribution, ReplayResult
from kvhouse.replayer.scenario import Scenario
from kvhouse.replayer.stop import Stop

if TYPE_CHECKING:
    from kvhouse.engine import EngineConfig
    from kvhouse.engine.fast.paths import Paths
    from kvhouse.engine.load import LoadedModel


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, predicted and measured.

    Attributes:
        name: Its key.
        unit: ``seconds``, ``per_second``, ``requests`` or ``count``.
        predicted: By the profile.
        measured: Of the run.
    """

    name: str
    unit: str
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """The prediction over the measurement, less 1; None where nothing was measured."""
        return self.predicted / self.measured - 1 if self.measured else None

    def to_dict(self) -> dict[str, Any]:
        """The figure under stable keys."""
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True, slots=True)
class Exactness:
    """Level 1: the same scenario replayed with the step times that the run recorded.

    Attributes:
        plan_log: SHA-256 of the run's step plans.
        replayed_plan_log: Of the replay's.
        differences: Figures that differ, and where it happened, the step at which the replay took
            another way; empty unless there is a bug.
    """

    plan_log: str
    replayed_plan_log: str
    differences: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class StepErrors:
    """The profile on the very steps that the run took.

    Attributes:
        steps: How many.
        sum: Its sum over the sum that was measured, less 1.
        median: Median of the absolute errors of single steps.
        within_10_percent: Share of the steps that it comes so near to.
    """

    steps: int
    sum: float
    median: float
    within_10_percent: float

    @classmethod
    def of(cls, times: FittedSteps, record: Record) -> StepErrors:
        """Of recorded steps."""
        measured = [result.seconds for result in record.results]
        predicted = [times.of(rows).seconds for rows in record.rows]
        errors = [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True) if m > 0]
        if not errors:
            return cls(0, 0.0, 0.0, 1.0)
        near = sum(error <= 0.1 for error in errors) / len(errors)
        total = sum(predicted) / sum(measured) - 1
        return cls(len(errors), total, median(errors), near)


@dataclass(frozen=True, slots=True)
class Verification:
    """A run and what was said of it before.

    Attributes:
        predicted: The replay by the profile.
        measured: The run.
        exactness: Level 1.
        steps: How far single steps are off.
        record: The run's steps.
        paths: Which way the run's model was computed.
    """

    predicted: ReplayResult
    measured: ReplayResult
    exactness: Exactness
    steps: StepErrors
    record: Record
    paths: Paths

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Level 2: each figure that both have."""
        pairs = zip(_figures(self.predicted), _figures(self.measured), strict=True)
        return tuple(
            Figure(name, unit, predicted, measured)
            for (name, unit, predicted), (_, _, measured) in pairs
            if predicted is not None and measured is not None
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; docs/json.md describes the keys."""
        return {
            "exact": self.exactness.exact,
            "exactness": asdict(self.exactness),
            "figures": [figure.to_dict() for figure in self.figures],
            "steps": asdict(self.steps),
            "predicted": self.predicted.to_dict(),
            "measured": self.measured.to_dict(),
            "paths": self.paths.to_dict(),
        }


def predict(scenario: Scenario, times: FittedSteps) -> ReplayResult:
    """Replay a scenario with a profile's step times."""
    links: list[Link] = [tier.link for tier in scenario.tiers]
    return scenario.drive(ModelledExecutor(times, links))


def verify(
    loaded: LoadedModel,
    scenario: Scenario,
    times: FittedSteps,
    config: EngineConfig,
    *,
    seed: int = 0,
    on_ended: Callable[[RequestRecord], None] | None = None,
    recorder: Recorder | None = None,
    stop: Stop | None = None,
) -> Verification:
    """Predict a scenario, run it for real, and hold the two together.

    Args:
        loaded: The model.
        scenario: The traffic, the pool and the limits.
        times: The profile's step times.
        config: How the model is computed; see ``engine.traced.run_trace``.
        seed: Decides the prompts.
        on_ended: Called for each request that the run finished.
        recorder: Gathers a picture of the run.
        stop: Ends the run early; then what is predicted and replayed is not comparable, and a
            `KvhouseError` says how far it came.

    Raises:
        KvhouseError: The scenario cannot be run.
    """
    from kvhouse.engine.traced import run_trace

    predicted, record = predict(scenario, times), Record()
    run = run_trace(
        loaded,
        scenario,
        config,
        seed=seed,
        on_ended=on_ended,
        watch=lambda executor: Recording(executor, record),
        recorder=recorder,
        stop=stop,
    )
    if stop is not None and stop.cut_short:
        done, asked = run.result.finished, run.result.scenario["requests"]
        raise KvhouseError(
            f"ended early, with {done:,} of {asked:,} requests finished: a part of a run cannot "
            "be held against the prediction of the whole"
        )
    return Verification(
        predicted,
        run.result,
        hold(scenario, run.result, record),
        StepErrors.of(times, record),
        record,
        run.paths,
    )


def hold(scenario: Scenario, measured: ReplayResult, record: Record) -> Exactness:
    """Replay a scenario with recorded step times and compare everything."""
    plans, digest = PlanFingerprint(), record.plans.digest

    def on_plan(plan: StepPlan) -> None:
        plans.add(plan)

    try:
        replayed = scenario.drive(Recorded(record.results), on_plan=on_plan)
    except Diverged as reason:
        return Exactness(digest, plans.digest, (str(reason),))
    differences = tuple(_different(replayed.to_dict(), measured.to_dict()))
    if plans.digest != digest:
        differences = ("step plans", *differences)
    return Exactness(digest, plans.digest, differences)


def _different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The keys whose values are not the same."""
    return [key for key in one if one[key] != other[key]]


def _figures(result: ReplayResult) -> Sequence[tuple[str, str, float | None]]:
    ttft, tpot = result.first_token_seconds, result.per_token_seconds
    return (
        ("output_tokens_per_second", "per_second", result.output_tokens_per_second),
        ("requests_per_second", "per_second", result.requests_per_second),
        *_spread("first_token_seconds", ttft),
        *_spread("per_token_seconds", tpot),
        *_spread("latency_seconds", result.latency_seconds),
        ("running_mean", "requests", result.running.mean),
        ("running_peak", "requests", result.running.peak),
        ("preemptions", "count", result.preemptions),
        ("recomputed_tokens", "count", result.recomputed_tokens),
        ("steps", "count", result.steps),
        ("used_share_mean", "share", result.ledger.mean_share["used"]),
        ("makespan_seconds", "seconds", result.makespan_seconds),
    )


def _spread(name: str, of: Distribution | None) -> list[tuple[str, str, float | None]]:
    return [
        (f"{name}_{at}", "seconds", getattr(of, at) if of else None)
        for at in ("mean", "p50", "p99")
    ]
