"""A replay as a value: change a field, and drive it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET, DEFAULT_WATERMARK, FIRST_FIT, PAGED
from kvhouse.core.scheduler import DEFAULT_MAX_RUNNING, SchedulerConfig
from kvhouse.core.step import Executor, StepPlan
from kvhouse.costs import FittedSteps, Roofline, Sums
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import DEFAULT_BLOCK_SIZE, KVLayout
from kvhouse.planner import DEFAULT_UTILIZATION, kv_budget
from kvhouse.planner.case import rank_of
from kvhouse.replayer.arrivals import TimedArrivals, backlog
from kvhouse.replayer.events import Event
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.guard import StepGuard
from kvhouse.replayer.recorder import Recorder
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.scenario import Scenario
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.tiering import Tiering, rule_of
from kvhouse.replayer.traces import Trace
from kvhouse.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Setup:
    """What is replayed on what; ``replay`` and ``Tiering`` explain each attribute.

    With ``times`` steps take as long as a profile says, and not as the device's roofline.
    """

    trace: Trace
    model: ModelSpec
    device: Device
    kv_memory: int | None = None
    kv_blocks: int | None = None
    policy: str = PAGED
    fit: str = FIRST_FIT
    prefix_cache: bool = False
    kv_format: str = "bf16"
    weight_dtype: str | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    max_length: int | None = None
    token_budget: int = DEFAULT_TOKEN_BUDGET
    max_running: int = DEFAULT_MAX_RUNNING
    order: str = "fcfs"
    prefill_first: bool = False
    watermark: float = DEFAULT_WATERMARK
    utilization: float = DEFAULT_UTILIZATION
    as_backlog: bool = False
    tiering: Tiering = field(default_factory=Tiering)
    tp: int = 1
    replica: tuple[int, int] = (1, 1)
    times: FittedSteps | None = None

    @property
    def rank(self) -> ModelSpec:
        """What one of the ``tp`` devices keeps of the model.

        Raises:
            KvhouseError: The model cannot be shared out among so many.
        """
        return rank_of(self.model, self.tp)

    @property
    def part(self) -> Trace:
        """What a router sends here that deals requests out to the replicas one after the other.

        Raises:
            KvhouseError: There is no such replica, or it gets no request.
        """
        number, replicas = self.replica
        if not 1 <= number <= replicas:
            raise KvhouseError(f"replica {number} of {replicas}: number them from 1 on")
        if replicas == 1:
            return self.trace
        requests = self.trace.requests[number - 1 :: replicas]
        if not requests:
            raise KvhouseError(
                f"replica {number} of {replicas} gets none of {len(self.trace.requests):,} requests"
            )
        return replace(self.trace, requests=requests)

    @property
    def layout(self) -> KVLayout:
        """How keys and values lie in blocks, on each rank."""
        return KVLayout.of(self.rank, self.kv_format, self.block_size)

    @property
    def config(self) -> SchedulerConfig:
        """The scheduler's limits."""
        return SchedulerConfig(
            max_length=self.model.length_limit(self.max_length),
            token_budget=self.token_budget,
            max_running=self.max_running,
            order=self.order,
            prefill_first=self.prefill_first,
        )

    @property
    def roofline(self) -> Roofline:
        """How long steps take at least, but for the sums over ranks."""
        return Roofline(self.rank, self.layout, self.device, self.weight_dtype)

    @property
    def sums(self) -> Sums:
        """What the ranks spend beside that."""
        return Sums.of(self.model, self.device, self.tp)

    def scenario(self) -> Scenario:
        """What decides the step plans.

        Raises:
            KvhouseError: An option is out of range, or the weights leave no memory for a pool.
        """
        kv_memory = 0
        if self.kv_blocks is None:
            budget = kv_budget(
                self.rank, self.device, self.weight_dtype, self.utilization, self.kv_memory
            )
            kv_memory = budget.pool_bytes()
        tiers, sums = self.tiering.on(self.device), self.sums
        return Scenario(
            trace=self.part,
            layout=self.layout,
            policy=self.policy,
            kv_memory=kv_memory,
            config=self.config,
            watermark=self.watermark,
            arrivals=backlog if self.as_backlog else TimedArrivals,
            kv_blocks=self.kv_blocks,
            prefix_cache=self.prefix_cache,
            fit=self.fit,
            tiers=tiers,
            pays=rule_of(tiers, self.roofline),
            tp=self.tp,
            sum_link=sums.bandwidth if sums.counted else None,
            replica=self.replica,
        )

    @property
    def missing_bytes(self) -> int:
        """What the device lacks for the weights beside a pool that was given; 0 where it fits.

        It is no error: whoever gives a pool may leave the weights out on purpose.
        """
        given = self.kv_memory
        if self.kv_blocks is not None:
            given = max(1, self.kv_blocks * self.layout.block_bytes)
        if given is None:
            return 0
        return kv_budget(self.rank, self.device, self.weight_dtype, 1.0, given).missing

    def bare(self) -> Setup:
        """The same without a prefix cache and tiers, which go with ``paged`` alone."""
        return replace(self, prefix_cache=False, tiering=Tiering())

    def require_paged(self, policies: Sequence[str], which: str) -> None:
        """Refuse a prefix cache or a tier where no policy can have one.

        Args:
            policies: Those that are driven.
            which: What they are, to follow "not" in the message.

        Raises:
            KvhouseError: There is one, and ``paged`` is not among them.
        """
        for there, what in ((self.prefix_cache, "a prefix cache"), (self.tiering, "a tier")):
            if there and PAGED not in policies:
                raise KvhouseError(f"{what} goes with {PAGED}, which is not {which}")

    def recorder(self) -> Recorder:
        """What gathers a picture of one drive."""
        part = self.part
        requests = part.requests
        if not requests or not self.as_backlog:
            return Recorder(requests[-1].arrival if requests else 0.0)
        # Half of what it takes to compute all tokens, since some may be found or refused.
        tokens, step = part.mean_tokens * len(requests), self.token_budget
        return Recorder(self.roofline.chunk(0, step).seconds * tokens / step / 2)

    def drive(
        self,
        *,
        slo: SLO | None = None,
        timeline: int | None = None,
        on_ended: Callable[[RequestRecord], None] | None = None,
        on_plan: Callable[[StepPlan], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        stop: Stop | None = None,
        recorder: Recorder | None = None,
    ) -> ReplayResult:
        """Replay it; see ``Scenario.drive``.

        Raises:
            KvhouseError: It is impossible.
            PhysicsError: What came out is impossible: a bug in kvhouse.
        """
        scenario = self.scenario()
        links = [tier.link for tier in scenario.tiers]
        executor: Executor
        if self.times:
            executor = ModelledExecutor(self.times, links)
        else:
            roofline = self.roofline
            modelled = ModelledExecutor(roofline, links, self.sums)
            executor = StepGuard(modelled, roofline, self.weight_dtype, links)
        return scenario.drive(
            executor,
            slo=slo,
            timeline=timeline,
            on_ended=on_ended,
            on_plan=on_plan,
            on_event=on_event,
            stop=stop,
            recorder=recorder,
        )
