"""Traffic and the house it meets, ready to be driven by whoever executes the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kvhouse.core.keys import BlockKeys
from kvhouse.core.memory import make_memory
from kvhouse.core.policy import DEFAULT_WATERMARK, FIRST_FIT
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Executor, StepPlan
from kvhouse.core.tiers import LoadRule, always
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.replayer.arrivals import Arrivals, TimedArrivals, backlog
from kvhouse.replayer.drive import drive
from kvhouse.replayer.events import Event
from kvhouse.replayer.guard import ResidencyGuard
from kvhouse.replayer.prefixes import keys_of
from kvhouse.replayer.recorder import Recorder
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.summary import summarise
from kvhouse.replayer.tiering import LinkedTier
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
        kv_blocks: Blocks of the pool, in place of ``kv_memory``. Where requests have a state too,
            there are slots for as many as may run at once.
        prefix_cache: Whether requests share blocks of prompts that the trace says are equal.
        fit: How contiguous policies look for a run, one of ``core.policy.FITS``.
        tiers: What lies below the pool, what is next below it first.
        pays: Whether to load from them what could be computed again.
        tp: Devices that share every layer; ``layout`` and the memory are those of one.
        sum_link: Bytes per second over which their sums are counted; None where they are not.
        replica: Which of how many replicas gets this part of the trace, from 1.
    """

    trace: Trace
    layout: KVLayout
    policy: str
    kv_memory: int
    config: SchedulerConfig
    watermark: float = DEFAULT_WATERMARK
    arrivals: Callable[[Iterable[TraceRequest]], Arrivals] = TimedArrivals
    kv_blocks: int | None = None
    prefix_cache: bool = False
    fit: str = FIRST_FIT
    tiers: tuple[LinkedTier, ...] = ()
    pays: LoadRule = always
    tp: int = 1
    sum_link: float | None = None
    replica: tuple[int, int] = (1, 1)

    @property
    def pool(self) -> PoolSize:
        """The pool's blocks and slots.

        Raises:
            KvhouseError: ``kv_blocks`` is below 1.
        """
        if self.kv_blocks is None:
            length = self.trace.mean_tokens
            return self.layout.pool_in(self.kv_memory, length, self.config.token_budget)
        if self.kv_blocks < 1:
            raise KvhouseError(f"{self.kv_blocks} KV blocks: a pool has at least 1")
        return PoolSize(self.kv_blocks, self.config.max_running * bool(self.layout.slot_bytes))

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
            "prefix_cache": self.prefix_cache,
            "fit": self.fit,
            "tiers": [tier.to_dict() for tier in self.tiers],
            "tp": self.tp,
            "sum_bytes_per_second": self.sum_link,
            "replica": self.replica[0],
            "replicas": self.replica[1],
            **asdict(self.config),
        }

    def drive(
        self,
        executor: Executor,
        *,
        slo: SLO | None = None,
        timeline: int | None = None,
        on_submitted: Callable[[Request, TraceRequest], None] | None = None,
        on_ended: Callable[[RequestRecord], None] | None = None,
        on_plan: Callable[[StepPlan], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        stop: Stop | None = None,
        recorder: Recorder | None = None,
    ) -> ReplayResult:
        """Lead the traffic through a fresh scheduler.

        Args:
            executor: Carries the steps out.
            slo: What requests should meet; see ``ReplayResult.goodput``.
            timeline: Bins of ``ReplayResult.timeline``.
            on_submitted: See ``drive``, as for all that follow.
            on_ended: For each request that ended.
            on_plan: For each step.
            on_event: For everything that happens to a request.
            stop: Ends it early, and the result is partial.
            recorder: Gathers what a picture needs.

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
            share=self.prefix_cache,
            tiers=[tier.config for tier in self.tiers],
            pays=self.pays,
            fit=self.fit,
        )
        log = drive(
            Scheduler(memory, self.config),
            executor,
            self.arrivals(self.trace.requests),
            keys=self._keys if self.prefix_cache else None,
            on_submitted=on_submitted,
            on_ended=on_ended,
            on_plan=on_plan,
            on_event=on_event,
            stop=stop,
            guard=ResidencyGuard(memory),
            recorder=recorder,
            keep=timeline is not None or recorder is not None,
        )
        if recorder:
            recorder.finish(log)
        return summarise(log, memory, self.to_dict(), slo=slo, timeline=timeline)

    def _keys(self, request: TraceRequest) -> BlockKeys | None:
        return keys_of(request, self.layout.block_size)
