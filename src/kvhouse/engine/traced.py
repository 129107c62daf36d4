"""A traffic trace, served for real: replay's own drive with the engine's executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvhouse.core.request import Request
from kvhouse.core.step import Executor, StepPlan
from kvhouse.engine.config import EngineConfig
from kvhouse.engine.executor import TorchExecutor
from kvhouse.engine.fast.paths import Paths
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.load import LoadedModel
from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.engine.tiering import make_stores, tiers_below
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer.arrivals import TimedArrivals, backlog
from kvhouse.replayer.prompts import Prompts
from kvhouse.replayer.recorder import Recorder
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.scenario import Scenario
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.traces import Trace, TraceRequest
from kvhouse.spec.model import ModelSpec

#: A trace says how long each output is, so no token may end it early.
_TO_THE_END = SamplingParams(ignore_eos=True)


@dataclass(frozen=True, slots=True)
class TracedRun:
    """What serving a trace gave.

    Attributes:
        result: The figures of the drive.
        kv_bytes: Bytes of the pool's tensors, as torch counts them.
        paths: Which way the model's blocks were computed.
    """

    result: ReplayResult
    kv_bytes: int
    paths: Paths

    def to_dict(self) -> dict[str, Any]:
        """The result's keys, ``kv_bytes`` and ``paths``."""
        paths = self.paths.to_dict()
        return {**self.result.to_dict(), "kv_bytes": self.kv_bytes, "paths": paths}


def scenario_for(
    config: EngineConfig,
    spec: ModelSpec,
    trace: Trace,
    *,
    as_backlog: bool = False,
    dtype: str | None = None,
) -> Scenario:
    """The scenario of serving ``trace`` with the pool and the limits of an engine.

    Args:
        config: The engine's.
        spec: The model.
        trace: The traffic.
        as_backlog: All requests come at once.
        dtype: What the model computes in; by default the dtype of its weights.

    Raises:
        KvhouseError: A setting is out of range.
    """
    layout = KVLayout.of(spec, config.kv_format, config.block_size, dtype=dtype)
    arrivals = backlog if as_backlog else TimedArrivals
    below = tiers_below(config.tiering, spec, layout, config.tier_directory, config.load_rule)
    return Scenario(
        trace,
        layout,
        config.policy,
        config.kv_memory,
        config.limits(spec),
        config.watermark,
        arrivals,
        prefix_cache=config.prefix_cache,
        tiers=below.tiers,
        pays=below.pays,
    )


def run_trace(
    loaded: LoadedModel,
    scenario: Scenario,
    config: EngineConfig,
    *,
    seed: int = 0,
    on_ended: Callable[[RequestRecord], None] | None = None,
    on_plan: Callable[[StepPlan], None] | None = None,
    watch: Callable[[Executor], Executor] | None = None,
    recorder: Recorder | None = None,
    stop: Stop | None = None,
) -> TracedRun:
    """Serve a scenario with a real model; step times are measured, idle gaps are skipped.

    Traces hold lengths and no texts, so prompts are random token ids; where the trace says that
    two prompts begin alike, they do.

    Args:
        loaded: The model; its spec is the scenario's.
        scenario: The traffic, the pool and the limits.
        config: How the model is computed: its kernel, rotation, KV cache, fast path and directory
            of tiers. All else of it is in the scenario already, which ``scenario_for`` made of it.
        seed: Decides the prompts.
        on_ended: Called for each request that finished or was rejected.
        on_plan: Called for each step's plan.
        watch: Puts an executor around the engine's, which may look at what it is asked.
        recorder: Gathers what a picture shows.
        stop: Ends it between two steps once it is asked for.

    Raises:
        KvhouseError: The pool cannot be built as described, the memory is not there, or the model
            gave no usable output for a request.
    """
    kv = KVTensors(loaded.spec, scenario.layout, scenario.pool, rotate=config.kv_rotation)
    stores = make_stores(scenario.tiers, scenario.layout, config.tier_directory)
    executor = TorchExecutor.on(kv, loaded, config, stores)
    prompts = Prompts(seed, loaded.spec.vocab_size)

    def register(request: Request, asked: TraceRequest) -> None:
        executor.add(request.id, prompts.of(asked), _TO_THE_END)

    def forget(record: RequestRecord) -> None:
        if record.request is not None:
            error = executor.error(record.request)
            executor.drop(record.request)
            if error:
                raise KvhouseError(f"request {record.index} of the trace: {error}")
        if on_ended:
            on_ended(record)

    result = scenario.drive(
        watch(executor) if watch else executor,
        on_submitted=register,
        on_ended=forget,
        on_plan=on_plan,
        recorder=recorder,
        stop=stop,
    )
    return TracedRun(result, kv.nbytes, executor.adapter.paths)
