"""The one loop that leads traffic through a scheduler, whoever carries the steps out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvhouse.core.ledger import Ledger
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler
from kvhouse.core.step import Executor, StepPlan
from kvhouse.errors import RequestRejected
from kvhouse.replayer.arrivals import Arrivals
from kvhouse.replayer.traces import TraceRequest


@dataclass(slots=True)
class RequestRecord:
    """What became of a request. Times are seconds on the drive's clock.

    Attributes:
        index: Its place among all requests that arrived, rejected ones included.
        prompt_tokens: Length of its prompt.
        max_new_tokens: The most tokens it may generate.
        arrival: When it arrived.
        rejection: Why it was refused, if it was; then nothing below is set.
        admitted: When the step began in which it first got memory.
        first_token: When the step ended that gave its first token.
        finished: When the step ended that gave its last token.
        generated: Tokens it got.
        preemptions: How often it lost its memory.
        request: Its id in the scheduler; None if it was rejected.
    """

    index: int
    prompt_tokens: int
    max_new_tokens: int
    arrival: float
    rejection: str | None = None
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None
    generated: int = 0
    preemptions: int = 0
    request: int | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of time in which nothing changes: one step, or a wait for the next arrival.

    Attributes:
        start: When it begins, in seconds.
        seconds: How long it lasts.
        step: Index of the step's plan; None for a wait.
        tokens: Tokens computed.
        running: Requests that hold memory.
        waiting: Requests in the queue.
        preempted: Requests that lost their memory for this step.
        ledger: The pool, the step's tokens counted as used.
    """

    start: float
    seconds: float
    step: int | None
    tokens: int
    running: int
    waiting: int
    preempted: int
    ledger: Ledger


@dataclass(slots=True)
class DriveLog:
    """Everything a drive saw.

    Attributes:
        timing: ``modelled`` or ``measured``, as the executor says.
        requests: In the order of arrival.
        intervals: Without gaps, from time 0 to the end.
    """

    timing: str
    requests: list[RequestRecord] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)


def drive(
    scheduler: Scheduler,
    executor: Executor,
    arrivals: Arrivals,
    *,
    on_submitted: Callable[[Request, TraceRequest], None] | None = None,
    on_ended: Callable[[RequestRecord], None] | None = None,
    on_plan: Callable[[StepPlan], None] | None = None,
) -> DriveLog:
    """Lead ``arrivals`` through ``scheduler`` until all have finished or were rejected.

    The clock is virtual: it advances by what the executor says each step took, and over an idle
    gap it jumps to the next arrival, as does the step counter when arrivals go by steps.

    Args:
        scheduler: Without work; requests and plans are counted from its present state on.
        executor: Carries the steps out.
        arrivals: What comes when.
        on_submitted: Called for each request that the scheduler took, before its first step.
        on_ended: Called for each request that finished or was rejected.
        on_plan: Called for each step's plan, before it is carried out.
    """
    state = _Drive(scheduler, executor, arrivals, on_submitted, on_ended, on_plan)
    while True:
        state.submit_arrived()
        if not scheduler.has_work:
            if not state.wait():
                return state.log
            continue
        state.take_step()


class _Drive:
    """One drive under way: its clock, its step counter and the records of live requests."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        arrivals: Arrivals,
        on_submitted: Callable[[Request, TraceRequest], None] | None,
        on_ended: Callable[[RequestRecord], None] | None,
        on_plan: Callable[[StepPlan], None] | None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.arrivals = arrivals
        self.on_submitted = on_submitted
        self.on_ended = on_ended or _ignore
        self.on_plan = on_plan or _ignore
        self.log = DriveLog(executor.timing)
        self.now = 0.0
        self.step = 0
        self._live: dict[int, RequestRecord] = {}

    def submit_arrived(self) -> None:
        """Hand everything that has arrived to the scheduler; a rejection is only recorded."""
        for arrival, asked in self.arrivals.due(self.step, self.now):
            record = RequestRecord(
                len(self.log.requests), asked.prompt_tokens, asked.output_tokens, arrival
            )
            self.log.requests.append(record)
            try:
                request = self.scheduler.submit(asked.prompt_tokens, asked.output_tokens)
            except RequestRejected as rejection:
                record.rejection = str(rejection)
                self.on_ended(record)
                continue
            record.request = request.id
            self._live[request.id] = record
            if self.on_submitted:
                self.on_submitted(request, asked)

    def wait(self) -> bool:
        """Jump to the next arrival; False when none is to come."""
        moment = self.arrivals.next_moment(self.step, self.now)
        if moment is None:
            return False
        self.step, until = moment
        if until > self.now:
            self._pass_time(until - self.now, None, 0, self.scheduler.ledger())
            self.now = until  # exactly, so that the next arrival is due
        return True

    def take_step(self) -> None:
        """Plan a step, have it executed, advance the clock and take in what it gave."""
        scheduler = self.scheduler
        plan = scheduler.schedule()
        if not plan.rows:
            raise RuntimeError(f"step {plan.index} computes nothing while requests wait")
        ledger, running = scheduler.ledger(), len(scheduler.running)
        for admitted in plan.admitted:
            record = self._live[admitted]
            record.admitted = self.now if record.admitted is None else record.admitted
        self.on_plan(plan)
        result, finished = scheduler.carry_out(plan, self.executor)
        self._pass_time(result.seconds, plan, running, ledger)
        self.step += 1
        for sampled in result.sampled:
            record = self._live[sampled.request]
            record.first_token = self.now if record.first_token is None else record.first_token
        for request in finished:
            self._finish(request)

    def _finish(self, request: Request) -> None:
        record = self._live.pop(request.id)
        record.finished = self.now
        record.generated = request.generated
        record.preemptions = request.preemptions
        self.on_ended(record)

    def _pass_time(
        self, seconds: float, plan: StepPlan | None, running: int, ledger: Ledger
    ) -> None:
        self.log.intervals.append(
            Interval(
                start=self.now,
                seconds=seconds,
                step=plan.index if plan else None,
                tokens=plan.tokens if plan else 0,
                running=running,
                waiting=len(self.scheduler.waiting),
                preempted=len(plan.preempted) if plan else 0,
                ledger=ledger,
            )
        )
        self.now += seconds


def _ignore(_: object) -> None:
    """What is called when nobody asked to be."""
