"""The profile against runs whose step times were recorded: how near its figures come.

``recorded_runs.json`` holds a profile of SmolLM2, fitted to steps that were timed on one core of a
busy machine, and the seconds of every step of three runs on it, as ``benchmarks/verify_shapes.py``
wrote them. No clock is looked at here.
"""

import json
from pathlib import Path

import pytest

from kvhouse import spec
from kvhouse.calibration.profile import Profile
from kvhouse.calibration.recorded import Record, Recording
from kvhouse.calibration.verify import Exactness, StepErrors, Verification, hold, predict
from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.core.step import Sampled, StepResult
from kvhouse.engine.fast.paths import Paths
from kvhouse.layout import KVLayout
from kvhouse.replayer import Scenario, read_trace

RECORDED = json.loads((Path(__file__).parent / "recorded_runs.json").read_text())
SPEC = spec.load("smollm2")
LAYOUT = KVLayout.of(SPEC, "fp32", dtype="float32")
#: What the issue asks of the figures on this model.
HELD_TO = {
    "output_tokens_per_second": 0.10,
    "per_token_seconds_mean": 0.10,
    "first_token_seconds_p50": 0.15,
    "first_token_seconds_p99": 0.25,
    "running_mean": 0.10,
}


class Player:
    """Gives each step its recorded seconds."""

    timing = "measured"

    def __init__(self, seconds):
        self._seconds = iter(seconds)

    def execute(self, plan):
        sampled = tuple(Sampled(row.request) for row in plan.rows if row.samples)
        return StepResult(next(self._seconds), sampled)


@pytest.fixture(scope="module", params=RECORDED["runs"])
def found(request):
    run = RECORDED["runs"][request.param]
    limits = SchedulerConfig(run["max_length"], run["token_budget"])
    trace = read_trace(run["trace"])
    scenario = Scenario(trace, LAYOUT, "paged", run["kv_memory"], limits, run["watermark"])
    times = Profile.model_validate(RECORDED["profile"]).steps(SPEC, LAYOUT)
    record = Record()
    measured = scenario.drive(Recording(Player(run["seconds"]), record))
    assert measured.steps == len(run["seconds"])
    exactness = hold(scenario, measured, record)
    errors = StepErrors.of(times, record)
    predicted = predict(scenario, times)
    return Verification(predicted, measured, exactness, errors, record, Paths())


def test_the_recorded_run_is_replayed_exactly(found):
    assert found.exactness == Exactness(found.exactness.plan_log, found.exactness.plan_log, ())


@pytest.mark.parametrize("name", HELD_TO)
def test_a_figure_comes_near(found, name):
    (figure,) = (figure for figure in found.figures if figure.name == name)
    assert abs(figure.error) <= HELD_TO[name]


def test_single_steps_come_near(found):
    assert found.steps.steps == found.measured.steps
    assert found.steps.median < 0.10
    assert abs(found.steps.sum) < 0.10


def test_the_shapes_are_what_they_are_for():
    """One of them preempts, one has prompts of many hundred tokens, one has neither."""
    assert set(RECORDED["runs"]) == {"short chat", "long prompts", "starved"}
    traces = {name: read_trace(run["trace"]) for name, run in RECORDED["runs"].items()}
    prompts = {name: [r.prompt_tokens for r in trace.requests] for name, trace in traces.items()}
    assert min(prompts["long prompts"]) >= 400
    assert max(prompts["short chat"]) <= 300
