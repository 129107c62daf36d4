"""Traffic and the house it meets, ready to be driven by whoever executes the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kvhouse.core.memory import make_memory
from kvhouse.core.policy import DEFAULT_WATERMARK
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Executor, StepPlan
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.replayer.arrivals import Arrivals, TimedArrivals, backlog
from kvhouse.replayer.drive import RequestRecord, drive
from kvhouse.replayer.results import ReplayResult, summarise
from kvhouse.replayer.traces import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides the step plans but how long the steps take.

    Where arrivals go by steps, as in a backlog, not even that counts: the same scenario then
    gives the same plans whoever executes them.

    Attributes:
        trace: The traffic.
        layout: How keys and values lie in blocks.
        policy: One of ``core.policy.POLICIES``, or ``contiguous``.
        kv_memory: Bytes for keys and values; the pool is the whole blocks in it. Where requests
            have a state too, as many slots as requests of the trace's mean length would fill.
        config: The scheduler's limits.
        watermark: Share of the pool that paged admissions keep free.
        arrivals: When requests arrive: at their times in the trace, or as a ``backlog``.
    """

    trace: Trace
    layout: KVLayout
    policy: str
    kv_memory: int
    config: SchedulerConfig
    watermark: float = DEFAULT_WATERMARK
    arrivals: Callable[[Iterable[TraceRequest]], Arrivals] = TimedArrivals

    @property
    def pool(self) -> PoolSize:
        """The pool's blocks and slots."""
        length = self.trace.mean_tokens
        return self.layout.pool_in(self.kv_memory, length, self.config.token_budget)

    def to_dict(self) -> dict[str, Any]:
        """The traffic and the limits as plain values, to stand beside the figures."""
        return {
            "trace": self.trace.name,
            "requests": len(self.trace.requests),
            "scale_lengths": self.trace.scale_lengths,
            "selection": asdict(self.trace.selection),
            "cut": self.trace.cut,
            "backlog": self.arrivals is backlog,
            "kv_format": self.layout.format.name,
            "watermark": self.watermark,
            **asdict(self.config),
        }

    def drive(
        self,
        executor: Executor,
        *,
        on_submitted: Callable[[Request, TraceRequest], None] | None = None,
        on_ended: Callable[[RequestRecord], None] | None = None,
        on_plan: Callable[[StepPlan], None] | None = None,
    ) -> ReplayResult:
        """Lead the traffic through a fresh scheduler; see ``drive`` for the callbacks.

        Raises:
            KvhouseError: The pool cannot be built as described.
        """
        memory = make_memory(
            self.policy,
            self.layout,
            self.pool,
            self.config.max_length,
            self.watermark,
            in_flight=self.config.token_budget,
        )
        log = drive(
            Scheduler(memory, self.config),
            executor,
            self.arrivals(self.trace.requests),
            on_submitted=on_submitted,
            on_ended=on_ended,
            on_plan=on_plan,
        )
        return summarise(log, memory, self.to_dict())
