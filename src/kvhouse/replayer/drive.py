"""The one loop that leads traffic through a scheduler, whoever carries the steps out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kvhouse.core.keys import BlockKeys
from kvhouse.core.ledger import Ledger
from kvhouse.core.refusal import Refusal
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler
from kvhouse.core.step import Executor, StepPlan
from kvhouse.errors import RequestRejected
from kvhouse.replayer.arrivals import Arrivals
from kvhouse.replayer.events import Event, Reporter, refusal_reason
from kvhouse.replayer.guard import Guard
from kvhouse.replayer.intervals import Interval, Intervals
from kvhouse.replayer.leaping import Leap, leap_of
from kvhouse.replayer.live import Live
from kvhouse.replayer.recorder import Recorder
from kvhouse.replayer.records import DriveLog, RequestRecord
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.traces import TraceRequest


def drive(
    scheduler: Scheduler,
    executor: Executor,
    arrivals: Arrivals,
    *,
    keys: Callable[[TraceRequest], BlockKeys | None] | None = None,
    on_submitted: Callable[[Request, TraceRequest], None] | None = None,
    on_ended: Callable[[RequestRecord], None] | None = None,
    on_plan: Callable[[StepPlan], None] | None = None,
    on_event: Callable[[Event], None] | None = None,
    guard: Guard | None = None,
    recorder: Recorder | None = None,
    keep: bool = True,
    stop: Stop | None = None,
) -> DriveLog:
    """Lead ``arrivals`` through ``scheduler`` until all have finished or were rejected.

    The clock is virtual: it advances by what the executor says each step took, and over an idle
    gap it jumps to the next arrival, as does the step counter when arrivals go by steps.

    Where nobody asks for plans, and memory and executor allow it, steps in which nothing happens
    are taken at once. The log is the same, to the last bit.

    Args:
        scheduler: Without work; requests and plans are counted from its present state on.
        executor: Carries the steps out.
        arrivals: What comes when.
        keys: Says what the blocks of a request hold, where prefixes may be shared.
        on_submitted: Called for each request that the scheduler took, before its first step.
        on_ended: Called for each request that finished or was rejected.
        on_plan: Called for each step's plan, before it is carried out.
        on_event: Called for everything that happens to a request.
        guard: Looks at every step.
        recorder: Looks at the pool now and then, for a picture.
        keep: Whether the log keeps its intervals, and not only what they come to.
        stop: Looked at between events; once it is asked for, the log ends there.
    """
    intervals = Intervals(keep=keep)
    state = _Drive(
        scheduler,
        executor,
        arrivals,
        DriveLog(executor.timing, intervals=intervals),
        intervals,
        keys=keys,
        report=Reporter(on_event) if on_event else None,
        on_submitted=on_submitted,
        on_ended=on_ended,
        on_plan=on_plan,
        guard=guard,
        recorder=recorder,
    )
    leap = None
    if on_plan is None:
        leap = leap_of(scheduler, executor, intervals, guard)
    stop = stop or Stop()
    while not stop.asked:
        state.submit_arrived()
        if scheduler.has_work:
            if leap is None or not state.take_stretch(leap):
                state.take_step()
        elif not state.wait():
            break
    else:
        stop.cut_short = state.break_off(leap)
    if leap:
        leap.settle()
    return state.log


@dataclass(slots=True)
class _Drive:
    """One drive under way: its clock, its step counter and the records of live requests."""

    scheduler: Scheduler
    executor: Executor
    arrivals: Arrivals
    log: DriveLog
    intervals: Intervals
    keys: Callable[[TraceRequest], BlockKeys | None] | None
    report: Reporter | None
    on_submitted: Callable[[Request, TraceRequest], None] | None
    on_ended: Callable[[RequestRecord], None] | None
    on_plan: Callable[[StepPlan], None] | None
    guard: Guard | None
    recorder: Recorder | None
    now: float = 0.0
    step: int = 0
    _live: dict[int, Live] = field(default_factory=dict)
    _next_plan: int = 0
    _refused: tuple[int, str] | None = None

    def submit_arrived(self) -> None:
        """Hand everything that has arrived to the scheduler; a rejection is only recorded."""
        for arrival, asked in self.arrivals.due(self.step, self.now):
            record = RequestRecord(
                len(self.log.requests), asked.prompt_tokens, asked.output_tokens, arrival
            )
            self.log.requests.append(record)
            request = self._submit(asked, record)
            if self.report:
                self.report.arrived(record, self._next_plan)
            if request and self.on_submitted:
                self.on_submitted(request, asked)
            elif not request and self.on_ended:
                self.on_ended(record)

    def _submit(self, asked: TraceRequest, record: RequestRecord) -> Request | None:
        keys = self.keys(asked) if self.keys else None
        try:
            request = self.scheduler.submit(
                asked.prompt_tokens, asked.output_tokens, keys, asked.priority
            )
        except RequestRejected as rejection:
            record.rejection = str(rejection)
            return None
        record.request = request.id
        self._live[request.id] = Live(record, request)
        return request

    def wait(self) -> bool:
        """Jump to the next arrival; False when none is to come."""
        moment = self.arrivals.next_moment(self.step, self.now)
        if moment is None:
            return False
        self.step, until = moment
        if until > self.now:
            if self.recorder:
                self.recorder.wait(self.now, until, self.scheduler)
            self._pass_time(until - self.now, self.scheduler.ledger())
            self.now = until  # exactly, so that the next arrival is due
        return True

    def break_off(self, leap: Leap | None) -> bool:
        """Note what is under way; whether anything is, or is still to come."""
        if leap:
            leap.leave()
        self.log.unfinished = [live.break_off() for live in self._live.values()]
        coming = self.arrivals.next_moment(self.step, self.now) is not None
        return bool(self.log.unfinished) or coming

    def take_step(self) -> None:
        """Plan a step, have it executed, advance the clock and take in what it gave."""
        scheduler = self.scheduler
        before = {request.id: request.computed for request in scheduler.running}
        plan = scheduler.schedule()
        self._next_plan = plan.index + 1
        if not plan.rows:
            raise RuntimeError(f"step {plan.index} computes nothing while requests wait")
        ledger, running = scheduler.ledger(), len(scheduler.running)
        for preempted in plan.preempted:
            self._preempt(preempted, before[preempted], plan.index)
        for admitted in plan.admitted:
            self._admit(admitted, plan.index)
        if scheduler.refusal is not None:
            self._note_refusal(scheduler.refusal, plan.index)
        if self.guard:
            self.guard.check(plan)
        if self.recorder:
            self.recorder.look(self.now, scheduler)
        if self.on_plan:
            self.on_plan(plan)
        result, finished = scheduler.carry_out(plan, self.executor)
        void = plan.void(result.failed_loads)
        tokens = plan.tokens - sum(row.count for row in plan.rows if row.request in void)
        self._pass_time(result.seconds, ledger, plan, tokens, running)
        self.step += 1
        self.log.sampled += len(result.sampled)
        for sampled in result.sampled:
            self._sample(sampled.request, plan.index, self.now)
        for request in finished:
            self._finish(request, plan.index)

    def take_stretch(self, leap: Leap) -> bool:
        """Take steps up to the next event at once; False where the next must be stepped."""
        stretch = leap.plan()
        if stretch is None:
            return False
        if not stretch.tokens:
            raise RuntimeError(f"step {stretch.index} computes nothing while requests wait")
        for admitted in stretch.admitted:
            self._admit(admitted.id, stretch.index)
        if self.scheduler.refusal is not None:
            self._note_refusal(self.scheduler.refusal, stretch.index)
        start = self.now
        until, most = self._limit(stretch.most)
        if self.recorder:
            self.recorder.look(start, self.scheduler, leap.written)
            until = min(until, self.recorder.due)
        seconds, self.now = leap.spend(start, until, most)
        finished = leap.advance(start, seconds)
        later = len(seconds) - 1
        self.step += later + 1
        self._next_plan = stretch.index + later + 1
        self.log.sampled += stretch.decoding + later * stretch.later
        for place, request in enumerate(stretch.prompts):
            _, _, samples = stretch.rows[place]
            if samples:
                self.log.sampled += 1
                self._sample(request.id, stretch.index, start + seconds[0])
        for request in finished:
            self._finish(request, self._next_plan - 1)
        return True

    def _limit(self, most: int) -> tuple[float, int]:
        """Up to which time, and for how many steps at most, nobody comes."""
        moment = self.arrivals.next_moment(self.step, self.now) if most > 1 else None
        if moment is None:
            return math.inf, most
        step, until = moment
        return (math.inf, min(most, step - self.step)) if step > self.step else (until, most)

    def _sample(self, request: int, step: int, now: float) -> None:
        record = self._live[request].record
        if record.first_token is None:
            record.first_token = now
            if self.report:
                self.report.first_token(record, step, now)

    def _admit(self, request: int, step: int) -> None:
        live = self._live[request]
        found, loading = live.admit()
        if live.record.admitted is None:
            live.record.admitted = self.now
        if self.report:
            self.report.admitted(live.record, step, self.now, found, loading)

    def _preempt(self, request: int, computed: int, step: int) -> None:
        live = self._live[request]
        live.leave(computed)
        live.record.lost += computed
        if self.report:
            self.report.preempted(live.record, step, self.now, computed)

    def _note_refusal(self, refusal: Refusal, step: int) -> None:
        """Count and report a refusal, once for each request and reason."""
        reason = refusal_reason(refusal)
        if self._refused != (refusal.request, reason):
            self._refused = refusal.request, reason
            self.log.refusals[reason] += 1
            if self.report:
                record = self._live[refusal.request].record
                self.report.refused(record, step, self.now, refusal, reason)

    def _finish(self, request: Request, step: int) -> None:
        live = self._live.pop(request.id)
        live.leave(request.computed)
        record = live.record
        record.finished = self.now
        live.note()
        if self.report:
            self.report.finished(record, step, self.now)
        if self.on_ended:
            self.on_ended(record)

    def _pass_time(
        self,
        seconds: float,
        ledger: Ledger,
        plan: StepPlan | None = None,
        tokens: int = 0,
        running: int = 0,
    ) -> None:
        self.intervals.add(
            Interval(
                start=self.now,
                seconds=seconds,
                step=plan.index if plan else None,
                tokens=tokens,
                running=running,
                waiting=len(self.scheduler.waiting),
                preempted=len(plan.preempted) if plan else 0,
                ledger=ledger,
            )
        )
        self.now += seconds
