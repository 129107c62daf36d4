"""One core: the same arrivals by step give the same plan log, modelled and for real."""

from __future__ import annotations

import random

import pytest

from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.engine.load import load_model
from kvhouse.engine.traced import run_trace
from kvhouse.layout import KVLayout
from kvhouse.replayer import Scenario, read_trace
from kvhouse.replayer.arrivals import SteppedArrivals
from kvhouse.replayer.drive import drive
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.traces import Trace, TraceRequest

DEVICE = Device("d", "A device", 2**30, 1e9, {"float32": 1e9}, "datasheet", "")


class Stepped(Scenario):
    """A scenario whose requests arrive at given steps, in bursts and with gaps."""

    def drive(self, executor, *, on_submitted=None, on_ended=None, on_plan=None):
        chance = random.Random(7)
        arrivals, step = [], 0
        for request in self.trace.requests:
            arrivals.append((step, request))
            step += chance.choice((0, 0, 1, 2, 9))
        memory = make_memory(
            self.policy, self.layout, self.blocks, self.config.max_length, self.watermark
        )
        log = drive(
            Scheduler(memory, self.config),
            executor,
            SteppedArrivals(arrivals),
            on_submitted=on_submitted,
            on_ended=on_ended,
            on_plan=on_plan,
        )
        return sum(record.preemptions for record in log.requests)


def plan_logs(loaded, scenario):
    """The plan logs of a modelled and of a real drive, and the preemptions of the real one."""
    modelled, real = [], []
    executor = ModelledExecutor(Roofline(loaded.spec, scenario.layout, DEVICE, "float32"))
    scenario.drive(executor, on_plan=lambda plan: modelled.append(plan.encode()))
    run = run_trace(loaded, scenario, on_plan=lambda plan: real.append(plan.encode()))
    return modelled, real, run.result


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
    scenario = Stepped(random_trace(40, 24), layout, policy, memory, limits, watermark=0.0)
    modelled, real, preemptions = plan_logs(loaded, scenario)
    assert len(modelled) > 40
    assert modelled == real
    assert (preemptions > 0) == preempts


@pytest.mark.parametrize("policy", ["paged", "contiguous"])
def test_smollm2_on_real_traffic(smollm2, policy):
    trace = read_trace("azure-conv-2023", limit=8, scale_lengths=0.03)
    layout = KVLayout.of(smollm2.loaded.spec, "fp32")
    limits = SchedulerConfig(160, token_budget=64, checked=True)
    scenario = Stepped(trace, layout, policy, 24 * layout.block_bytes, limits)
    modelled, real, _ = plan_logs(smollm2.loaded, scenario)
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
        as_backlog=True,
    )
    modelled, real = [], []
    executor = ModelledExecutor(Roofline(loaded.spec, layout, DEVICE, "float32"))
    predicted = scenario.drive(executor, on_plan=lambda plan: modelled.append(plan.encode()))
    run = run_trace(loaded, scenario, on_plan=lambda plan: real.append(plan.encode()))
    assert modelled == real
    assert run.kv_bytes == predicted.pool.bytes == 30 * layout.block_bytes
    assert run.result.running.peak == predicted.running.peak
    assert (predicted.timing, run.result.timing) == ("modelled", "measured")
