"""Many steps at once, with exactly the plans that stepping would have made, but none written out.

Between two events (an arrival, an admission, an end, a dry pool) a decoding request only counts up
and takes a block now and then, and a long prompt goes on by what the budget leaves. A ``Leaper``
keeps the decoding requests in a ``Cohort`` and touches one of them only when something happens to
it. It changes the scheduler's
own queue, tables and pool, in the order in which stepping would; what it cannot do so, it leaves
to ``Scheduler.schedule``: preemption, steps whose budget does not reach every decoding request,
windows and other kinds of memory that let tokens go, and tiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhouse.core.cached_pool import CachedPool
from kvhouse.core.check import check
from kvhouse.core.cohort import Cohort
from kvhouse.core.growth import Growth
from kvhouse.core.memory import KVMemory
from kvhouse.core.outlook import Outlook
from kvhouse.core.policy import PAGED
from kvhouse.core.queue import PLACE, place_of, put_in_order
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
        #: Bytes of a block that each group's layers fill.
        self._layer_bytes = [group.layer_bytes for group in self.memory.layout.groups]
        self._windows, self._tiers = self.memory.layout.windows, self.memory.tiers
        self._cohort = Cohort(self._size, self._windows)
        self._growth = Growth(self.memory, self._cohort)
        self._outlook = Outlook(scheduler, self._cohort, self._growth)
        #: Running requests that do not decode, in order.
        self._prompts: list[Request] = []
        #: Whether it is in charge.
        self.inside = False

    @staticmethod
    def suits(scheduler: Scheduler) -> bool:
        """Whether it can tell what requests hold: all grows evenly, or leaves a window evenly."""
        memory, layout = scheduler.memory, scheduler.memory.layout
        if memory.tiers and memory.tiers.write_through:  # every block that is full is stored
            return False
        alone = memory.policy == PAGED and not (memory.sharing or scheduler.config.prefill_first)
        return all(
            (group.reach.kind == "all" or (group.reach.kind == "window" and alone))
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
        cohort, prompts = Cohort(self._size, self._windows), []
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
        self._outlook = Outlook(self.scheduler, cohort, growth)
        self.inside = True
        return True

    def sync(self) -> None:
        """Write down what every request has computed and generated."""
        self._cohort.sync()
        for request in self._cohort.members:
            self.memory.holding(request).renew()

    def written(self, request: Request) -> int:
        """Tokens that a request has in the pool after the first step of a planned stretch."""
        member = self._cohort.members.get(request.id)
        moving = member is not None and self.stretch.decoding > 0
        if member and self._windows:  # whoever looks at blocks asks how far they are needed
            member.sync(self._cohort.tick)
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
        beginning, windows = cohort.beginning(cohort.tick), self._growth.windows
        if waits and size > budget:
            return None
        needed = len(beginning) * self._growth.each
        if beginning and needed > self._pool.free_blocks:
            return None
        if self._tiers and not self._outlook.leaves_alone(self._tiers, needed):
            return None
        left = self._deal(budget, alone=waits) if self._prompts else budget - size * (not waits)
        if windows:
            needed += windows.most_needed(self._prompts)
        if left < 0 or (windows and needed > self._pool.free_blocks):
            self._undo()
            return None
        scheduler.refusal = None
        if windows:
            self._growth.take_turns(self._prompts)
        elif beginning and not waits:
            self._growth.begin(beginning)
        stretch.admitted = self._admit(left) if scheduler.waiting.head else _NOBODY
        moving = not (waits and any(request.in_flight for request in self._prompts))
        if beginning and waits and moving:
            self._growth.begin(beginning)
        self._describe(size if moving else 0)
        stretch.later, stretch.most = cohort.size, 1
        if stretch.rows:
            self._outlook.look_beyond(stretch, self._prompts)
        elif stretch.decoding:
            stretch.most = self._outlook.quiet()
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
        if running[-len(self._prompts)] is self._prompts[0]:  # as they come: after all others
            budget, others = budget - others, 0
        for place, request in enumerate(self._prompts):
            if others:
                passed = place_of(request, running) - place
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
            put_in_order(request, self._prompts)
        return admitted

    def _describe(self, decoding: int) -> None:
        stretch, cohort, scheduler = self.stretch, self._cohort, self.scheduler
        stretch.index = scheduler.steps
        stretch.running = len(scheduler.running)
        stretch.waiting = len(scheduler.waiting) if scheduler.waiting.head else 0
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
        if self._growth.windows:
            stretch.unheld = [stretch.free]
            self._growth.windows.describe(stretch, self._prompts)
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
        stretch.in_shared = 0
        if stretch.shared:
            for number, layer_bytes in enumerate(self._layer_bytes):
                holders = pool.shared_blocks[number] + pool.saved_blocks[number]
                stretch.in_shared += holders * layer_bytes

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
            del running[place_of(request, running)]
            request.state = RequestState.FINISHED
            self.memory.end(request)
        if self._sharing:
            self._sharing.forget_ended()


_NOBODY: list[Request] = []
