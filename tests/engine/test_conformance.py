"""One core: the same arrivals by step give the same plan log, modelled and for real."""

from __future__ import annotations

import random

import pytest

from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.core.step import StepResult
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.engine.config import EngineConfig
from kvhouse.engine.executor import TorchExecutor
from kvhouse.engine.load import load_model
from kvhouse.engine.traced import run_trace, scenario_for
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer import Scenario, read_trace
from kvhouse.replayer.arrivals import SteppedArrivals, TimedArrivals, backlog
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.traces import Trace, TraceRequest

DEVICE = Device("d", "A device", 2**30, 1e9, {"float32": 1e9}, "datasheet", "")


def bursts(requests):
    """Arrivals at given steps, in bursts and with gaps."""
    chance = random.Random(7)
    arrivals, step = [], 0
    for request in requests:
        arrivals.append((step, request))
        step += chance.choice((0, 0, 1, 2, 9))
    return SteppedArrivals(arrivals)


def both(loaded, scenario):
    """The plan logs and the results of a modelled and of a real drive."""
    modelled, real = [], []
    executor = ModelledExecutor(Roofline(loaded.spec, scenario.layout, DEVICE, "float32"))
    predicted = scenario.drive(executor, on_plan=lambda plan: modelled.append(plan.encode()))
    run = run_trace(
        loaded, scenario, EngineConfig(), on_plan=lambda plan: real.append(plan.encode())
    )
    return modelled, real, predicted, run


def random_trace(count, longest):
    chance = random.Random(3)
    lengths = [(chance.randint(1, longest), chance.randint(1, longest)) for _ in range(count)]
    return Trace("random", tuple(TraceRequest(0.0, prompt, new) for prompt, new in lengths))


@pytest.mark.parametrize(
    ("policy", "blocks", "budget", "preempts"),
    [("paged", 200, 64, False), ("paged", 14, 16, True), ("contiguous", 40, 16, False)],
)
def test_a_tiny_model(tiny_directory, policy, blocks, budget, preempts):
    loaded = load_model(tiny_directory("llama-gqa"))
    layout = KVLayout.of(loaded.spec, "fp32", 4)
    limits = SchedulerConfig(48, token_budget=budget, max_running=8, checked=True)
    memory = blocks * layout.block_bytes
    scenario = Scenario(random_trace(40, 24), layout, policy, memory, limits, 0.0, bursts)
    modelled, real, predicted, run = both(loaded, scenario)
    assert len(modelled) > 40
    assert modelled == real
    assert (predicted.preemptions > 0) == (run.result.preemptions > 0) == preempts


@pytest.mark.parametrize("policy", ["paged", "contiguous"])
def test_smollm2_on_real_traffic(smollm2, policy):
    trace = read_trace("azure-conv-2023", limit=8, scale_lengths=0.03)
    layout = KVLayout.of(smollm2.loaded.spec, "fp32")
    limits = SchedulerConfig(160, token_budget=64, checked=True)
    memory = 24 * layout.block_bytes
    scenario = Scenario(trace, layout, policy, memory, limits, arrivals=bursts)
    modelled, real, *_ = both(smollm2.loaded, scenario)
    assert modelled == real


def test_a_backlog_gives_one_log_and_the_layouts_bytes(tiny_directory):
    loaded = load_model(tiny_directory("qwen2"))
    layout = KVLayout.of(loaded.spec, "fp16", 4)
    scenario = Scenario(
        random_trace(20, 20),
        layout,
        "paged",
        30 * layout.block_bytes + 1,
        SchedulerConfig(40, 32, checked=True),
        arrivals=backlog,
    )
    modelled, real, predicted, run = both(loaded, scenario)
    assert modelled == real
    assert run.kv_bytes == predicted.pool.bytes == 30 * layout.block_bytes
    assert run.result.running.peak == predicted.running.peak
    assert (predicted.timing, run.result.timing) == ("modelled", "measured")


def test_the_same_step_times_give_the_same_log_under_timed_arrivals(tiny_directory, monkeypatch):
    """A modelled drive that is told how long the real steps took plans as the real one did."""
    loaded = load_model(tiny_directory("llama-gqa"))
    layout = KVLayout.of(loaded.spec, "fp32", 4)
    requests = random_trace(30, 20).requests
    timed = tuple(request._replace(arrival=0.004 * i) for i, request in enumerate(requests))
    memory = 16 * layout.block_bytes
    scenario = Scenario(
        Trace("timed", timed), layout, "paged", memory, SchedulerConfig(40, 32, checked=True), 0.0
    )
    assert scenario.arrivals is TimedArrivals
    real, seconds = [], []
    execute = TorchExecutor.execute

    def timing(self, plan):
        result = execute(self, plan)
        seconds.append(result.seconds)
        return result

    monkeypatch.setattr(TorchExecutor, "execute", timing)
    run = run_trace(
        loaded, scenario, EngineConfig(), on_plan=lambda plan: real.append(plan.encode())
    )

    class Recorded(ModelledExecutor):
        def execute(self, plan):
            return StepResult(seconds[plan.index], super().execute(plan).sampled)

    modelled = []
    executor = Recorded(Roofline(loaded.spec, layout, DEVICE, "float32"))
    replayed = scenario.drive(executor, on_plan=lambda plan: modelled.append(plan.encode()))
    assert modelled == real
    assert replayed.ledger == run.result.ledger
    assert replayed.makespan_seconds == run.result.makespan_seconds


def test_the_engine_s_config_says_how_a_trace_is_computed(tiny_directory):
    loaded = load_model(tiny_directory("llama-gqa"))

    def run(**settings):
        config = EngineConfig(2**20, block_size=4, max_length=40, **settings)
        scenario = scenario_for(config, loaded.spec, random_trace(3, 9), dtype=loaded.dtype)
        run = run_trace(loaded, scenario, config)
        assert run.result.finished == 3
        return run.paths

    assert run().fast == len(loaded.spec.layers)
    assert run(fast_path=False).reason == "the fast path is off"
    with pytest.raises(KvhouseError, match="the Numba kernel cannot serve this pool"):
        run(kernel="numba")
    with pytest.raises(KvhouseError, match="KV format fp32 cannot be rotated"):
        run(kv_rotation=True)


def test_a_model_that_gives_nan_ends_the_trace_with_the_reason(tiny_directory):
    loaded = load_model(tiny_directory("llama-gqa"))
    loaded.model.lm_head.weight.data.fill_(float("nan"))
    layout = KVLayout.of(loaded.spec, "fp32", 4)
    scenario = Scenario(
        random_trace(3, 9), layout, "paged", 64 * layout.block_bytes, SchedulerConfig(40)
    )
    with pytest.raises(KvhouseError, match="request 0 of the trace: the model gave no finite"):
        run_trace(loaded, scenario, EngineConfig())
