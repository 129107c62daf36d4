"""The scheduler: which request computes which tokens in the next step, and with what memory."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.core.check import check
from kvhouse.core.keys import BlockKeys
from kvhouse.core.ledger import Ledger, account
from kvhouse.core.memory import KVMemory
from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET
from kvhouse.core.queue import WaitingQueue, get_order, put_in_order
from kvhouse.core.refusal import Refusal
from kvhouse.core.rejection import refuse_the_impossible
from kvhouse.core.request import Request, RequestState
from kvhouse.core.rows import make_row, sealed_by
from kvhouse.core.step import Executor, StepPlan, StepResult
from kvhouse.core.tiers import all_failed, refuse_stray
from kvhouse.errors import KvhouseError

DEFAULT_MAX_RUNNING = 256


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step.

    Attributes:
        max_length: Longest request, prompt and output together, in tokens.
        token_budget: Most tokens computed in one step.
        max_running: Most requests that hold memory at once.
        order: Who goes first: a key of ``core.queue.ORDERS``.
        prefill_first: Whether decoding waits while any prompt is still to be computed; otherwise
            both share a step, decoding first.
        checked: Check every invariant after every step; slow, for tests and debugging.

    Raises:
        KvhouseError: A limit below 1, or no such order.
    """

    max_length: int
    token_budget: int = DEFAULT_TOKEN_BUDGET
    max_running: int = DEFAULT_MAX_RUNNING
    order: str = "fcfs"
    prefill_first: bool = False
    checked: bool = False

    def __post_init__(self) -> None:
        get_order(self.order)
        for name in ("max_length", "token_budget", "max_running"):
            value = getattr(self, name)
            if value < 1:
                raise KvhouseError(f"{name} {value}: must be at least 1")


class Scheduler:
    """First come, first served, under one token budget a step.

    There are no phases: each running request's ``computed`` tokens chase its ``known`` ones, and
    prefill, chunked prefill, decode and resuming after a preemption are that one rule. When
    the pool runs dry the last arrived gives its blocks up and goes back to the head of the
    queue, so the oldest request always gets on and in the end every request finishes.

    Raises:
        KvhouseError: The memory was planned for shorter requests or smaller steps than these.
    """

    def __init__(self, memory: KVMemory, config: SchedulerConfig) -> None:
        memory.placement.require(config.max_length, config.token_budget)
        self.memory = memory
        self.config = config
        self._order = get_order(config.order)
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        #: Why the head of the queue was not admitted in the last step, if it was memory.
        self.refusal: Refusal | None = None
        self._submitted = 0
        self._step: StepPlan | None = None
        #: Steps planned so far.
        self.steps = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.running) or self.waiting.head is not None

    @property
    def under_way(self) -> bool:
        """Whether a planned step has not been applied or abandoned."""
        return self._step is not None

    def submit(
        self,
        prompt_tokens: int,
        max_new_tokens: int,
        keys: BlockKeys | None = None,
        priority: int = 0,
    ) -> Request:
        """Put a request into the queue.

        Args:
            prompt_tokens: Tokens known from the start.
            max_new_tokens: The most tokens that may be generated.
            keys: What its blocks hold, where its prefix may be shared.
            priority: Where the order goes by priority, its place: lower goes first.

        Raises:
            RequestRejected: It could never finish here; the reason is given in tokens and bytes.
        """
        number = self._submitted
        keys = self.memory.keys_for(number, keys)
        request = Request(number, prompt_tokens, max_new_tokens, priority=priority, keys=keys)
        request.place = self._order(request)
        refuse_the_impossible(request, self.memory, self.config.max_length)
        self._submitted += 1
        self.waiting.push(request)
        return request

    def cancel(self, request: Request) -> None:
        """Drop a request at once and free what it holds; one that has ended is left alone."""
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        elif request.state is RequestState.RUNNING:
            self.running.remove(request)
            self.memory.end(request)
        else:
            return
        request.state = RequestState.CANCELLED

    def schedule(self) -> StepPlan:
        """Plan the next step; the plan has no rows when there is nothing to do.

        Raises:
            RuntimeError: The step before has not been applied.
        """
        if self._step is not None:
            raise RuntimeError(f"step {self._step.index} is still under way: apply it first")
        self.refusal = None
        self.memory.begin_step()
        preempted: list[int] = []
        admitted = [request.id for request in self._choose(preempted)]
        rows = tuple(make_row(self.memory, r) for r in self.running if r.in_flight)
        seals = tuple(block for row in rows for block in sealed_by(self.memory.layout, row))
        who = tuple(admitted), tuple(preempted)
        loads, stores, moves = self.memory.transfers
        self._step = StepPlan(self.steps, rows, seals, *who, loads, stores, moves)
        self.steps += 1
        return self._step

    def apply(self, plan: StepPlan, result: StepResult) -> tuple[Request, ...]:
        """Take in what a step gave and return the requests that it finished.

        A request with a row that is void, because a load failed, goes back to the queue with
        nothing computed. What failed is forgotten, so it is not tried again.

        Raises:
            RuntimeError: ``plan`` is not the step under way, or ``result`` does not answer it.
        """
        if plan is not self._step:
            raise RuntimeError(f"step {plan.index} is not under way")
        refuse_stray(plan, result)
        void = plan.void(result.failed_loads)
        sampling = [row.request for row in plan.rows if row.samples and row.request not in void]
        if [sampled.request for sampled in result.sampled] != sampling:
            raise RuntimeError(f"step {plan.index}: the samples do not match the sampling rows")
        self._step = None
        stopped = {sampled.request for sampled in result.sampled if sampled.stop}
        requests = {request.id: request for request in self.running}
        finished = []
        for row in plan.rows:
            request = requests.get(row.request)
            if request is None:  # cancelled while the step ran
                continue
            if request.id in void:
                self._send_back(request)
                continue
            self.memory.seal(request, row.first, row.count)
            request.computed += row.count
            request.in_flight = 0
            request.generated += row.samples
            if request.generated == request.max_new_tokens or request.id in stopped:
                finished.append(request)
        self._retire(finished)
        self.memory.end_step(result)
        if self.config.checked:
            check(self)
        return tuple(finished)

    def abandon(self, plan: StepPlan) -> None:
        """Give up a step that was interrupted: its tokens are computed again by a later step.

        Its transfers count as failed, since nobody knows how far they came.

        Raises:
            RuntimeError: ``plan`` is not the step under way.
        """
        if plan is not self._step:
            raise RuntimeError(f"step {plan.index} is not under way")
        self._step = None
        result = all_failed(plan)
        void = plan.void(result.failed_loads)
        for request in list(self.running):
            request.in_flight = 0
            if request.id in void:
                self._send_back(request)
        self.memory.end_step(result)

    def carry_out(
        self, plan: StepPlan, executor: Executor
    ) -> tuple[StepResult, tuple[Request, ...]]:
        """Have ``plan`` executed and applied: what it gave, and the requests that it finished.

        Whatever interrupts the executor, Ctrl-C included, leaves the step as if it had not been.
        """
        try:
            result = executor.execute(plan)
        except BaseException:
            self.abandon(plan)
            raise
        return result, self.apply(plan, result)

    def ledger(self) -> Ledger:
        """Account for every byte of the pool as it is now."""
        return account(self.memory, self.running, self.waiting.head)

    def _choose(self, preempted: list[int]) -> list[Request]:
        """Say who computes how many tokens in this step, and return who was admitted to it."""
        budget = self.config.token_budget
        if not self.config.prefill_first:
            budget = self._continue(self.running, budget, preempted)
            return [] if preempted else self.admit_waiting(budget)
        prompts = [request for request in self.running if not request.decoding]
        left = self._continue(prompts, budget, preempted)
        admitted = [] if preempted else self.admit_waiting(left)
        if not any(request.in_flight for request in self.running):
            self._continue(self.running, budget, preempted)
        return admitted

    def _continue(self, requests: list[Request], budget: int, preempted: list[int]) -> int:
        """Give running requests tokens, in their order, and return the budget left."""
        position = 0
        while position < len(requests) and budget:
            request = requests[position]
            position += 1
            if request.state is not RequestState.RUNNING:  # lost its memory in this very loop
                continue
            count = min(request.remaining, budget)
            while not self.memory.grow(request, request.computed + count):
                victim = self.running[-1]
                self._preempt(victim)
                preempted.append(victim.id)
                if victim is request:
                    return budget
            request.in_flight = count
            budget -= count
        return budget

    def _preempt(self, victim: Request) -> None:
        """Take the last arrived request's memory; it will compute its known tokens again."""
        self.running.pop()
        self.memory.release(victim.id)
        victim.computed = 0
        victim.preemptions += 1
        victim.state = RequestState.WAITING
        self.waiting.push(victim)

    def _send_back(self, request: Request) -> None:
        """Take the memory of a request that could not be loaded; it will be admitted again."""
        self.running.remove(request)
        self.memory.give_up(request)
        request.computed = request.in_flight = 0
        request.setbacks += 1
        request.state = RequestState.WAITING
        self.waiting.push(request)

    def admit_waiting(self, budget: int) -> list[Request]:
        """Admit from the head of the queue until the budget, the limit or the memory ends."""
        admitted: list[Request] = []
        while budget and len(self.running) < self.config.max_running:
            head = self.waiting.head
            if head is None:
                break
            self.refusal = self.memory.admit(head, alone=not self.running)
            if self.refusal is not None:
                break
            put_in_order(self.waiting.pop(), self.running)
            head.state = RequestState.RUNNING
            head.in_flight = min(head.remaining, budget)
            budget -= head.in_flight
            admitted.append(head)
        return admitted

    def _retire(self, finished: list[Request]) -> None:
        for request in finished:
            request.state = RequestState.FINISHED
            self.memory.end(request)
        if finished:
            self.running = [r for r in self.running if r.state is RequestState.RUNNING]
