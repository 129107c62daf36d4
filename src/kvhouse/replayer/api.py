"""Replay in one call: a trace, a model and a device in, the figures out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvhouse import devices, spec
from kvhouse.core.policy import DEFAULT_WATERMARK
from kvhouse.core.scheduler import DEFAULT_MAX_RUNNING, DEFAULT_TOKEN_BUDGET, SchedulerConfig
from kvhouse.core.step import StepPlan
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.layout import DEFAULT_BLOCK_SIZE, KVLayout
from kvhouse.planner import DEFAULT_UTILIZATION, kv_budget
from kvhouse.replayer.arrivals import TimedArrivals, backlog
from kvhouse.replayer.drive import RequestRecord
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.scenario import Scenario
from kvhouse.replayer.traces import Trace, read_trace
from kvhouse.spec.model import ModelSpec


def replay(
    trace: str | Path | Trace,
    model: str | Path | ModelSpec,
    device: str | Device,
    *,
    kv_memory: int | None = None,
    policy: str = "paged",
    kv_format: str = "bf16",
    weight_dtype: str | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
    max_length: int | None = None,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    max_running: int = DEFAULT_MAX_RUNNING,
    watermark: float = DEFAULT_WATERMARK,
    utilization: float = DEFAULT_UTILIZATION,
    as_backlog: bool = False,
    on_ended: Callable[[RequestRecord], None] | None = None,
    on_plan: Callable[[StepPlan], None] | None = None,
) -> ReplayResult:
    """Lead a trace through the scheduler on a virtual clock of roofline times.

    Args:
        trace: A trace, or what ``read_trace`` takes: a file, a bundled name, a description.
        model: A catalogue name, a config, a GGUF file, or a spec.
        device: A device's name or figures.
        kv_memory: Bytes for keys and values; by default what the device has left after reserve
            and weights. The pool is the whole blocks in it.
        policy: ``paged``, ``contiguous-max`` (or ``contiguous``), ``contiguous-pow2`` or
            ``contiguous-oracle``.
        kv_format: How keys and values are stored.
        weight_dtype: How the weights are stored; by default as published.
        block_size: Tokens per block.
        max_length: Longest request allowed, and what ``contiguous-max`` reserves for each; by
            default the model's own limit.
        token_budget: Most tokens computed in one step.
        max_running: Most requests that hold memory at once.
        watermark: Share of the pool that paged admissions keep free.
        utilization: Share of the device's memory that the engine may use.
        as_backlog: Whether all requests wait from the start, whatever their times in the trace.
        on_ended: Called for each request that finished or was rejected.
        on_plan: Called for each step's plan.

    Raises:
        KvhouseError: The input is impossible; the message says which part. Requests that can
            never fit are no error: ``ReplayResult.rejections`` lists them.
    """
    trace = trace if isinstance(trace, Trace) else read_trace(trace)
    model = model if isinstance(model, ModelSpec) else spec.load(model)
    device = device if isinstance(device, Device) else devices.get(device)
    config = SchedulerConfig(model.length_limit(max_length), token_budget, max_running)
    layout = KVLayout.of(model, kv_format, block_size)
    budget = kv_budget(model, device, weight_dtype, utilization, kv_memory)
    arrivals = backlog if as_backlog else TimedArrivals
    scenario = Scenario(trace, layout, policy, budget.pool_bytes(), config, watermark, arrivals)
    executor = ModelledExecutor(Roofline(model, layout, device, weight_dtype))
    return scenario.drive(executor, on_ended=on_ended, on_plan=on_plan)
