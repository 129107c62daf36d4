"""What paging buys: one backlog, one small pool, two ways of handing it out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvhouse import spec
from kvhouse.core.policy import CONTIGUOUS_MAX, PAGED
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.planner import Plan, plan
from kvhouse.replayer import Scenario, Trace, read_trace
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.guard import StepGuard
from kvhouse.replayer.logged import LoggedDrive, PlanFingerprint

if TYPE_CHECKING:
    from kvhouse.engine import EngineConfig
    from kvhouse.engine.load import LoadedModel

#: The policies that are compared, the older way first.
POLICIES = (CONTIGUOUS_MAX, PAGED)

#: A label and a number of items in; a context whose value is called once for each item.
Progress = Callable[[str, int], AbstractContextManager[Callable[[object], None]]]


@dataclass(frozen=True, slots=True)
class Setting:
    """The chapter's chatbot in miniature: its lengths and its limit, divided by eight.

    Attributes:
        model: A small model whose weights come as a package.
        trace: Real traffic; all of it waits from the start, so memory alone decides admission.
        requests: How much of the trace is served.
        scale_lengths: What its lengths are multiplied with, to suit a CPU.
        max_length: Longest request allowed, in tokens; 8192 / 8.
        token_budget: Most tokens computed in a step; small, so that first tokens come early.
        reservations: Requests for which the pool can reserve ``max_length``.
        dtype: Weights and arithmetic.
        kv_format: Keys and values.
    """

    model: str = "smollm2"
    trace: str = "azure-conv-2023"
    requests: int = 48
    scale_lengths: float = 1 / 8
    max_length: int = 1024
    token_budget: int = 512
    reservations: int = 8
    dtype: str = "float32"
    kv_format: str = "fp32"


class PagingDemo:
    """The demo, part by part; each part can be shown before the next begins."""

    def __init__(self, setting: Setting, progress: Progress) -> None:
        self.setting = setting
        self.progress = progress
        self.spec = spec.load(setting.model)
        self.layout = KVLayout.of(self.spec, setting.kv_format, dtype=setting.dtype)
        self.trace: Trace = read_trace(
            setting.trace, limit=setting.requests, scale_lengths=setting.scale_lengths
        )
        reserved = self.layout.blocks_for(setting.max_length) * self.layout.block_bytes
        self.kv_memory = setting.reservations * reserved

    def plan(self, device: Device) -> Plan:
        """Size the pool for requests of the mean length."""
        return plan(
            self.spec,
            device,
            kv_memory=self.kv_memory,
            context=self.trace.mean_tokens,
            max_length=self.setting.max_length,
            kv_format=self.setting.kv_format,
            weight_dtype=self.setting.dtype,
        )

    def replay(self, policy: str, device: Device) -> LoggedDrive:
        """Drive the backlog with modelled steps."""
        roofline = Roofline(self.spec, self.layout, device, self.setting.dtype)
        executor = StepGuard(ModelledExecutor(roofline), roofline, self.setting.dtype)
        log = PlanFingerprint()
        _, scenario = self._engine(policy)
        with self._bar(f"replay {policy}") as advance:
            result = scenario.drive(executor, on_ended=advance, on_plan=log.add)
        return LoggedDrive(result, log.digest, result.pool.bytes)

    def run(self, policy: str, loaded: LoadedModel) -> LoggedDrive:
        """Drive the same backlog with the real model."""
        from kvhouse.engine.traced import run_trace

        log = PlanFingerprint()
        config, scenario = self._engine(policy)
        with self._bar(f"run {policy}") as advance:
            run = run_trace(loaded, scenario, config, on_ended=advance, on_plan=log.add)
        return LoggedDrive(run.result, log.digest, run.kv_bytes)

    def _bar(self, label: str) -> AbstractContextManager[Callable[[object], None]]:
        return self.progress(label, len(self.trace.requests))

    def _engine(self, policy: str) -> tuple[EngineConfig, Scenario]:
        """The pool and the limits, and the backlog that meets them."""
        from kvhouse.engine import EngineConfig
        from kvhouse.engine.traced import scenario_for

        setting = self.setting
        config = EngineConfig(
            self.kv_memory,
            setting.kv_format,
            policy=policy,
            block_size=self.layout.block_size,
            max_length=setting.max_length,
            token_budget=setting.token_budget,
        )
        scenario = scenario_for(config, self.spec, self.trace, as_backlog=True, dtype=setting.dtype)
        return config, scenario


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything the demo found, by policy where it depends on one."""

    setting: Setting
    plan: Plan
    replays: dict[str, LoggedDrive]
    runs: dict[str, LoggedDrive]

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain values; docs/json.md describes the keys."""
        return asdict(self)

    def check(self) -> None:
        """Hold run and replay together.

        Raises:
            KvhouseError: They differ in something that must be equal: a bug in kvhouse.
        """
        for policy in POLICIES:
            replayed, ran = self.replays[policy], self.runs[policy]
            for name, predicted, measured in (
                ("step plans", replayed.plan_log, ran.plan_log),
                ("pool bytes", replayed.pool_bytes, ran.pool_bytes),
                ("requests at once", replayed.result.running.peak, ran.result.running.peak),
            ):
                if predicted != measured:
                    raise KvhouseError(
                        f"{policy}: replay and run differ in their {name}: "
                        f"{predicted} and {measured}"
                    )
