"""Many steps at once, with exactly the plans that stepping would have made, but none written out.

Between two events (an arrival, an admission, an end, a chunk of a prompt, a dry pool) a decoding
request only counts up and takes a block now and then. A ``Leaper`` keeps such requests in a
``Cohort`` and touches one of them only when something happens to it. It changes the scheduler's
own queue, tables and pool, in the order in which stepping would; what it cannot do so, it leaves
to ``Scheduler.schedule``: preemption, steps whose budget does not reach every decoding request,
windows and other kinds of memory that let tokens go, and tiers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from kvhouse.core.cached_pool import CachedPool
from kvhouse.core.check import check
from kvhouse.core.cohort import Cohort
from kvhouse.core.growth import Growth
from kvhouse.core.memory import KVMemory
from kvhouse.core.queue import PLACE
from kvhouse.core.request import Request, RequestState
from kvhouse.core.stretch import Stretch

if TYPE_CHECKING:
    from kvhouse.core.scheduler import Scheduler


class Leaper:
    """Leads a scheduler on by stretches; ``leave`` before the scheduler is used otherwise.

    While it is in charge, the counters of decoding requests stand still; ``sync`` writes them
    down.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.memory: KVMemory = scheduler.memory
        self.config = scheduler.config
        self.stretch = Stretch()
        self._pool, self._sharing = self.memory.pool, self.memory.sharing
        self._slots = self.memory.slots if self.memory.layout.slot_bytes else None
        self._size = self.memory.layout.block_size
        self._cohort = Cohort(self._size)
        self._growth = Growth(self.memory, self._cohort)
        #: Running requests that do not decode, in order.
        self._prompts: list[Request] = []
        #: Whether it is in charge.
        self.inside = False

    @staticmethod
    def suits(memory: KVMemory) -> bool:
        """Whether all that requests hold in ``memory`` only grows until they end."""
        layout = memory.layout
        return memory.tiers is None and all(
            group.reach.kind == "all"
            and group.stride == 1
            and group.block_size == layout.block_size
            for group in layout.groups
        )

    def enter(self) -> bool:
        """Take charge; False, and nothing is changed, where a request is at an odd place.

        Raises:
            RuntimeError: A step is under way.
        """
        if self.scheduler.under_way:
            raise RuntimeError("a step is under way: apply it first")
        cohort, prompts = Cohort(self._size), []
        growth = Growth(self.memory, cohort)
        for request in self.scheduler.running:
            growth.room += growth.room_of(request)
            if request.decoding and growth.at_its_edge(request, request.computed):
                growth.join(request)
            elif request.decoding and self.config.prefill_first:
                return False
            else:
                prompts.append(request)
        self._cohort, self._growth, self._prompts = cohort, growth, prompts
        self.inside = True
        return True

    def sync(self) -> None:
        """Write down what every request has computed and generated."""
        self._cohort.sync()
        for request in self._cohort.members:
            self.memory.holding(request).renew()

    def written(self, request: Request) -> int:
        """Tokens that a request has in the pool after the first step of a planned stretch."""
        moving = request.id in self._cohort.members and self.stretch.decoding > 0
        return self._cohort.computed_by(request) + request.in_flight + moving

    def leave(self) -> None:
        """Give the scheduler back, as stepping would have left it."""
        if self.inside:
            self.sync()
            self.inside = False

    def plan(self) -> Stretch | None:
        """Begin the next step, and say how many could be taken before the next event.

        Returns:
            None where the step must be left to ``Scheduler.schedule``; nothing is changed then.
        """
        scheduler, cohort, stretch = self.scheduler, self._cohort, self.stretch
        budget, size, waits = self.config.token_budget, cohort.size, self.config.prefill_first
        beginning = cohort.beginning(cohort.tick)
        if len(beginning) * self._growth.each > self._pool.free_blocks or (waits and size > budget):
            return None
        left = self._deal(budget, alone=waits) if self._prompts else budget - size * (not waits)
        if left < 0:
            self._undo()
            return None
        scheduler.refusal = None
        if beginning and not waits:
            self._growth.begin(beginning)
        stretch.admitted = self._admit(left) if scheduler.waiting else _NOBODY
        moving = not (waits and any(request.in_flight for request in self._prompts))
        if beginning and waits and moving:
            self._growth.begin(beginning)
        self._describe(size if moving else 0)
        stretch.later, stretch.most = cohort.size, 1
        if stretch.rows:
            self._look_beyond()
        elif stretch.decoding:
            stretch.most = self._quiet()
        return stretch

    def advance(self, steps: int) -> list[Request]:
        """Take the planned step and ``steps - 1`` more, and return the requests that finished."""
        cohort, rows = self._cohort, self.stretch.prompts
        self.scheduler.steps += steps
        if not rows or steps == 1:
            self._growth.take(range(cohort.tick + 1, cohort.tick + steps), self.stretch)
            return self._go_on(steps, rows, moving=self.stretch.decoding > 0)
        self._go_on(1, rows, moving=self.stretch.decoding > 0)
        ticks, going_on = range(cohort.tick, cohort.tick + steps - 1), None
        if self.stretch.chunk:
            going_on = rows[-1]
            going_on.in_flight = self.stretch.chunk
        self._growth.take(ticks, self.stretch, going_on)
        return self._go_on(steps - 1, [going_on] if going_on else [], moving=True)

    def _go_on(self, steps: int, rows: list[Request], *, moving: bool) -> list[Request]:
        """Take in what steps gave whose blocks were taken; of the rows, the last step alone."""
        cohort = self._cohort
        if self._sharing:
            self._growth.seal(cohort.tick + steps, rows, moving=moving)
        finished = cohort.advance(steps) if moving else []
        for request in rows:
            request.computed += request.in_flight
            request.in_flight = 0
            if request.computed == request.known:
                request.generated += 1
            if request.generated == request.max_new_tokens:
                finished.append(request)
                self._prompts.remove(request)
            elif request.decoding:
                self._join(request)
        if finished:
            self._retire(finished)
        if self.config.checked and self.inside:
            self.sync()
            check(self.scheduler)
        return finished

    def _deal(self, budget: int, *, alone: bool) -> int:
        """Give prompts their tokens among the decoding requests, and return the budget left.

        Args:
            budget: Tokens of the step.
            alone: Whether the decoding requests take no part.

        Returns:
            A negative number where a decoding request would get nothing.
        """
        running, others = self.scheduler.running, 0 if alone else self._cohort.size
        for place, request in enumerate(self._prompts):
            if others:
                passed = bisect_left(running, request.place, key=PLACE) - place
                between = passed - (self._cohort.size - others)
                budget -= between
                others -= between
            if budget <= 0:
                break
            request.in_flight = min(request.remaining, budget)
            budget -= request.in_flight
        return budget - others

    def _undo(self) -> None:
        for request in self._prompts:
            request.in_flight = 0

    def _admit(self, budget: int) -> list[Request]:
        admitted = self.scheduler.admit_waiting(budget)
        for request in admitted:
            self._growth.room += self._growth.room_of(request)
            insort(self._prompts, request, key=PLACE)
        return admitted

    def _describe(self, decoding: int) -> None:
        stretch, cohort, scheduler = self.stretch, self._cohort, self.scheduler
        stretch.index = scheduler.steps
        stretch.running, stretch.waiting = len(scheduler.running), len(scheduler.waiting)
        stretch.decoding = stretch.tokens = decoding
        stretch.before = cohort.computed if decoding else 0
        stretch.written = cohort.computed + decoding
        stretch.rows, stretch.prompts = [], []
        stretch.chunk = stretch.chunk_first = stretch.idle = 0
        for request in self._prompts:
            first, count = request.computed, request.in_flight
            stretch.written += first + count
            if count:
                stretch.rows.append((first, count, first + count == request.known))
                stretch.prompts.append(request)
                stretch.tokens += count
            else:
                stretch.idle += first
        stretch.free, stretch.room = self._pool.free_blocks, self._growth.room
        stretch.begun, stretch.excess = [], []
        if self._sharing:
            self._describe_shared(self._sharing.pool)
        elif not self._growth.each and scheduler.waiting.head:
            needed = self.memory.blocks_to_admit(scheduler.waiting.head)
            stretch.external = self._pool.unusable(needed)
        else:
            stretch.external = 0
        if self._slots:
            stretch.free_slots = self._slots.free_blocks

    def _describe_shared(self, pool: CachedPool) -> None:
        stretch = self.stretch
        stretch.cached = [pool.cached_blocks]
        stretch.shared, stretch.saved = sum(pool.shared_blocks), sum(pool.saved_blocks)
        if stretch.shared:
            groups = zip(
                pool.shared_blocks, pool.saved_blocks, self.memory.layout.groups, strict=True
            )
            stretch.in_shared = sum(
                (several + further) * group.layer_bytes for several, further, group in groups
            )
        else:
            stretch.in_shared = 0

    def _look_beyond(self) -> None:
        """Let steps follow where the first step's other rows decode from then on.

        The last of them may be a part of a prompt, which then takes what is left of the budget.
        """
        stretch, cohort, rows = self.stretch, self._cohort, self.stretch.prompts
        if self.config.prefill_first:
            return
        last = rows[-1]
        left = last.known - last.computed - last.in_flight
        starting = rows[:-1] if left else rows
        steps = cohort.until_end if stretch.decoding else 2**62
        for request in starting:
            end = request.computed + request.in_flight
            if end < request.known or not self._growth.at_its_edge(request, end):
                return
            steps = min(steps, request.max_new_tokens - request.generated)
        later = cohort.size + len(starting)
        chunk = self.config.token_budget - later
        if left:
            if chunk <= 0 or not self._comes_last(last):
                return
            steps = min(steps, 1 + (left - 1) // chunk)
        elif chunk < 0 or len(rows) < len(self._prompts) or not self._nobody_follows():
            return
        if later * self._growth.each * -(-steps // self._size) <= self._pool.free_blocks:
            stretch.later, stretch.most = later, steps
            if left:
                stretch.chunk, stretch.chunk_first = chunk, last.known - left

    def _comes_last(self, prompt: Request) -> bool:
        """Whether all that run after a prompt in the order are prompts whose turn has not come."""
        running = self.scheduler.running
        after = len(running) - 1 - bisect_left(running, prompt.place, key=PLACE)
        return after == len(self._prompts) - len(self.stretch.prompts)

    def _nobody_follows(self) -> bool:
        """Whether nobody is admitted after a step with rows, while only blocks are taken."""
        scheduler, refusal = self.scheduler, self.scheduler.refusal
        if refusal is None:
            return not scheduler.waiting or len(scheduler.running) == self.config.max_running
        # What the rows compute may be what the head of the queue lacks.
        return not self._sharing and not refusal.reason_may_change

    def _floor(self) -> int | None:
        """Free blocks down to which the head of the queue is refused as it was, for one reason.

        None where that may change with every step.
        """
        scheduler, refusal = self.scheduler, self.scheduler.refusal
        if refusal is None or not scheduler.waiting.head:
            return 0
        if self._sharing:
            if self._cohort.keyed:  # what they fill may be what it lacks
                return None
            # It may lose what it found, and then needs more.
            needed = self.memory.blocks_to_admit(scheduler.waiting.head)
        else:
            needed = refusal.needed
        return needed if refusal.reason_may_change else 0

    def _quiet(self) -> int:
        """Steps up to the next event, the planned one included."""
        cohort, floor = self._cohort, self._floor()
        steps = cohort.until_end
        if not self._growth.each or steps == 1:
            return steps
        if floor is None:
            return 1
        spare = self._pool.free_blocks - floor
        most = cohort.size * self._growth.each * -(-steps // self._size)
        if most <= spare:
            return steps
        for step in range(1, steps):
            spare -= len(cohort.beginning(cohort.tick + step)) * self._growth.each
            if spare < 0:
                return step
        return steps

    def _join(self, request: Request) -> None:
        """Let a request that decodes from now on into the cohort, if it stands where it should."""
        if self._growth.at_its_edge(request, request.computed):
            self._prompts.remove(request)
            self._growth.join(request)
        elif self.config.prefill_first:
            self.leave()

    def _retire(self, finished: list[Request]) -> None:
        running = self.scheduler.running
        finished.sort(key=PLACE)
        for request in finished:
            self._growth.room -= self._growth.room_of(request)
            del running[bisect_left(running, request.place, key=PLACE)]
            request.state = RequestState.FINISHED
            self.memory.end(request)


_NOBODY: list[Request] = []
