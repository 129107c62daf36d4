"""A run replayed with its own step times is the run: plans, ledger, hits, preemptions, figures."""

from dataclasses import replace

import pytest

from kvhouse.calibration.calibrate import profile_of
from kvhouse.calibration.measure import Bench
from kvhouse.calibration.profile import read_profile
from kvhouse.calibration.recorded import Record
from kvhouse.calibration.verify import hold, verify
from kvhouse.costs import FittedSteps, StepRates
from kvhouse.engine import EngineConfig
from kvhouse.engine.load import load_model
from kvhouse.engine.traced import scenario_for
from kvhouse.errors import KvhouseError
from kvhouse.replayer import Stop, read_trace
from kvhouse.replayer.tiering import Tiering

RATES = StepRates((1, 64), (1e-3, 5e-3), *[0.0] * 6)
CHAT = (
    "conversations:rate=40,turns=3,pause=20,system=8,block=4,prompt=uniform(4,12),"
    "output=uniform(4,12),requests=16,seed=1"
)
CROWD = "poisson:rate=300,prompt=uniform(4,20),output=uniform(4,20),requests=24,seed=2"

AT_ONCE = CROWD.replace("rate=300", "rate=1000000")


@pytest.fixture
def tiny(tiny_directory):
    return load_model(tiny_directory("llama-gqa"))


def checked(loaded, trace, **settings):
    """Verify with rates that know nothing of this machine: level 1 does not ask for them."""
    defaults = {"block_size": 4, "max_length": 128, "token_budget": 48, "checked": True}
    config = EngineConfig(**defaults | settings)
    scenario = scenario_for(config, loaded.spec, read_trace(trace), dtype=loaded.dtype)
    times = FittedSteps(loaded.spec, scenario.layout, RATES)
    return verify(loaded, scenario, times, config), scenario


@pytest.mark.parametrize(
    ("trace", "settings", "meets"),
    [
        (CROWD, {"kv_memory": 2**20}, None),
        (AT_ONCE, {"kv_memory": 16 * 4 * 768, "watermark": 0.0}, "preemptions"),
        (CHAT, {"kv_memory": 2**20, "prefix_cache": True}, "reused_tokens"),
        (
            CHAT,
            {
                "kv_memory": 24 * 4 * 768,
                "prefix_cache": True,
                "tiering": Tiering(2**20, host_link=1e9),
                "load_rule": lambda *_: True,
            },
            None,
        ),
        (CROWD, {"kv_memory": 2**20, "policy": "contiguous-pow2"}, None),
    ],
    ids=["roomy", "preempting", "sharing", "tiers", "contiguous"],
)
def test_with_the_run_s_times_all_is_equal(tiny, trace, settings, meets):
    found, _ = checked(tiny, trace, **settings)
    assert found.exactness.differences == ()
    assert found.exactness.plan_log == found.exactness.replayed_plan_log
    assert found.measured.finished == found.predicted.finished > 10
    assert found.measured.steps == len(found.record.results) > 20
    if meets:
        assert getattr(found.measured, meets) > 0


def test_smollm2(smollm2_model):
    trace = "poisson:rate=8,prompt=uniform(4,12),output=uniform(2,4),requests=4,seed=4"
    found, _ = checked(smollm2_model, trace, kv_memory=2**22, watermark=0.0)
    assert found.exactness.exact
    assert found.measured.finished == 4


def test_other_times_are_another_run(tiny):
    """It can fail: with other times requests arrive at other steps."""
    found, scenario = checked(tiny, CROWD, kv_memory=2**20)
    slower = [replace(one, seconds=one.seconds * 3) for one in found.record.results]
    record = Record(found.record.rows, slower, found.record.plans)
    exactness = hold(scenario, found.measured, record)
    assert not exactness.exact
    assert exactness.differences


def test_a_run_of_other_memory_is_another_run(tiny):
    found, scenario = checked(tiny, CROWD, kv_memory=2**20)
    exactness = hold(replace(scenario, kv_memory=2**15), found.measured, found.record)
    assert not exactness.exact
    assert "step" in exactness.differences[0]


def test_a_figure_that_was_tampered_with_is_named(tiny):
    found, scenario = checked(tiny, CROWD, kv_memory=2**20)
    measured = replace(found.measured, preemptions=1)
    assert hold(scenario, measured, found.record).differences == ("preemptions",)


def test_a_run_that_is_ended_early_is_held_against_nothing(tiny):
    stop = Stop()

    def end(_):
        stop.asked = True

    config = EngineConfig(kv_memory=2**20, block_size=4, max_length=128)
    scenario = scenario_for(config, tiny.spec, read_trace(CROWD), dtype=tiny.dtype)
    times = FittedSteps(tiny.spec, scenario.layout, RATES)
    with pytest.raises(KvhouseError, match=r"ended early, with \d+ of 24 requests finished"):
        verify(tiny, scenario, times, config, on_ended=end, stop=stop)


def test_a_calibration_of_any_kind_of_model(architecture, tmp_path):
    """Windows and states: every point of the design that fits is timed once, and fitted."""
    for name in ("gemma3_text", "qwen3_next"):
        loaded = architecture(name)
        config = EngineConfig(kv_memory=2**22, block_size=4, max_length=64, token_budget=32)
        bench = Bench(loaded, config)
        timed = bench.measure(rounds=1)
        assert len(timed) > len(bench.points) / 2
        profile = profile_of(loaded, bench, timed, partial=False)
        path = tmp_path / "p.json"
        path.write_bytes(profile.encode())
        times = read_profile(path).steps(loaded.spec, bench.layout)
        assert times.of([(20, 1, True)] * 4).seconds > 0


def test_a_calibration_that_is_ended_has_what_was_timed(tiny):
    bench, stop, steps = Bench(tiny, EngineConfig(kv_memory=2**20, max_length=64)), Stop(), []

    def count(_):
        steps.append(1)
        stop.asked = len(steps) == 5

    timed = bench.measure(on_step=count, stop=stop)
    assert stop.cut_short
    assert 1 <= len(timed) <= 5
    stopped = Stop(asked=True)
    with pytest.raises(KvhouseError, match="no step could be timed"):
        bench.measure(stop=stopped)
