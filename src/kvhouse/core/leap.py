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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvhouse.core.cached_pool import CachedPool
from kvhouse.core.check import check
from kvhouse.core.cohort import Cohort, Member
from kvhouse.core.memory import KVMemory
from kvhouse.core.policy import PAGED
from kvhouse.core.queue import PLACE
from kvhouse.core.request import Request, RequestState

if TYPE_CHECKING:
    from kvhouse.core.scheduler import Scheduler


#: A row without its tables: first position, tokens, and whether it samples.
PlainRow = tuple[int, int, bool]


@dataclass(slots=True)
class Stretch:
    """Steps in a row of which only the first is more than its decoding rows counting up.

    One object serves for all stretches of a leaper: what is to be kept must be copied.

    Attributes:
        index: Number of the first step.
        most: Steps that may be taken before the next event, at least 1.
        decoding: Rows of one token in the first step; all of them sample.
        later: Rows of one token in every later step, all that run; they sample too.
        before: Tokens in the pool that these have together before the first step.
        rows: The first step's other rows.
        prompts: The requests of these rows.
        tokens: Tokens of the first step.
        written: Tokens in the pool after the first step; each later one adds ``later``.
        admitted: Who got memory in the first step.
        running: Requests that hold memory.
        waiting: Requests in the queue.
        free: Blocks that nobody holds, for each step that was taken.
        room: Tokens for which running requests hold blocks or may come to fill them, likewise.
        cached: Free blocks with content, likewise; empty where nothing is shared.
        free_slots: Slots that nobody holds.
        external: Free blocks that are of no use to the head of the queue.
        shared: Blocks that several requests hold.
        saved: The further holders of these.
        in_shared: Bytes that requests need in shared blocks, counted once for each holder.
    """

    index: int = 0
    most: int = 1
    decoding: int = 0
    later: int = 0
    before: int = 0
    rows: list[PlainRow] = field(default_factory=list)
    prompts: list[Request] = field(default_factory=list)
    tokens: int = 0
    written: int = 0
    admitted: list[Request] = field(default_factory=list)
    running: int = 0
    waiting: int = 0
    free: list[int] = field(default_factory=list)
    room: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    free_slots: int = 0
    external: int = 0
    shared: int = 0
    saved: int = 0
    in_shared: int = 0


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
        self._paged = self.memory.policy == PAGED and bool(self.memory.layout.groups)
        self._each = len(self.memory.layout.groups)
        self._cohort = Cohort(self._size)
        #: Running requests that do not decode, in order.
        self._prompts: list[Request] = []
        self._room = 0
        #: Whether it is in charge.
        self.inside = False

    @staticmethod
    def suits(memory: KVMemory) -> bool:
        """Whether all that requests hold in ``memory`` only grows until they end."""
        layout = memory.layout
        return memory.tiers is None and all(
            group.reach.kind == "all" and group.stride == 1 and group.block_size == layout.block_size
            for group in layout.groups
        )

    def enter(self) -> bool:
        """Take charge; False, and nothing is changed, where a request is at an odd place.

        Raises:
            RuntimeError: A step is under way.
        """
        if self.scheduler.under_way:
            raise RuntimeError("a step is under way: apply it first")
        cohort, prompts, room = Cohort(self._size), [], 0
        for request in self.scheduler.running:
            room += self._room_of(request)
            if request.decoding and self._at_its_edge(request, request.computed):
                cohort.add(request, self._tables(request))
            elif request.decoding and self.config.prefill_first:
                return False
            else:
                prompts.append(request)
        self._cohort, self._prompts, self._room = cohort, prompts, room
        self.inside = True
        return True

    def sync(self) -> None:
        """Write down what every request has computed and generated."""
        self._cohort.sync()
        for request in self._cohort.members:
            self.memory.holding(request).renew()

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
        if len(beginning) * self._each > self._pool.free_blocks or (waits and size > budget):
            return None
        left = self._deal(budget, alone=waits) if self._prompts else budget - size * (not waits)
        if left < 0:
            self._undo()
            return None
        scheduler.refusal = None
        if beginning and not waits:
            self._begin_blocks(beginning)
        stretch.admitted = self._admit(left) if scheduler.waiting else _NOBODY
        moving = not (waits and any(request.in_flight for request in self._prompts))
        if beginning and waits and moving:
            self._begin_blocks(beginning)
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
        if rows and steps > 1:
            self._go_on(1, rows)
            self._take_blocks(range(cohort.tick, cohort.tick + steps - 1))
            finished = self._go_on(steps - 1, [])
        else:
            self._take_blocks(range(cohort.tick + 1, cohort.tick + steps))
            finished = self._go_on(steps, rows)
        return finished

    def _go_on(self, steps: int, rows: list[Request]) -> list[Request]:
        """Take in what steps gave whose blocks were taken."""
        cohort, moving = self._cohort, self.stretch.decoding > 0 or not rows
        if self._sharing:
            self._seal(cohort.tick + steps, rows, moving=moving)
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
            self._room += self._room_of(request)
            insort(self._prompts, request, key=PLACE)
        return admitted

    def _begin_blocks(self, beginning: list[Member]) -> None:
        """Give each of these its next blocks."""
        blocks = self._pool.take(len(beginning) * self._each)
        assert blocks is not None, "the pool was looked at before"
        self._hand_out(beginning, self._cohort.tick, iter(blocks))

    def _hand_out(self, beginning: list[Member], tick: int, blocks: Iterator[int]) -> None:
        size, room = self._size, self._room
        for member in beginning:
            for table in member.tables:
                table.append(next(blocks))
            left = member.end - tick + 1
            room += size if left > size else left
        self._room = room

    def _describe(self, decoding: int) -> None:
        stretch, cohort, scheduler = self.stretch, self._cohort, self.scheduler
        stretch.index = scheduler.steps
        stretch.running, stretch.waiting = len(scheduler.running), len(scheduler.waiting)
        stretch.decoding = stretch.tokens = decoding
        stretch.before = cohort.computed if decoding else 0
        stretch.written = cohort.computed + decoding
        stretch.rows, stretch.prompts = [], []
        for request in self._prompts:
            first, count = request.computed, request.in_flight
            stretch.written += first + count
            if count:
                stretch.rows.append((first, count, first + count == request.known))
                stretch.prompts.append(request)
                stretch.tokens += count
        stretch.free, stretch.room = [self._pool.free_blocks], [self._room]
        if self._sharing:
            self._describe_shared(self._sharing.pool)
        elif not self._paged and scheduler.waiting.head:
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
        """Let quiet steps follow where all of the first step's other rows decode from then on."""
        stretch, scheduler = self.stretch, self.scheduler
        if self.config.prefill_first or len(stretch.rows) != len(self._prompts):
            return
        if scheduler.waiting and scheduler.refusal is None:
            if len(scheduler.running) < self.config.max_running:
                return
        elif scheduler.refusal is not None and (self._sharing or scheduler.refusal.reason_may_change):
            return
        steps = self._cohort.until_end if stretch.decoding else 2**62
        for request in stretch.prompts:
            end = request.computed + request.in_flight
            if end < request.known or not self._at_its_edge(request, end):
                return
            steps = min(steps, request.max_new_tokens - request.generated)
        later = self._cohort.size + len(stretch.prompts)
        if later > self.config.token_budget:
            return
        if later * self._each * -(-steps // self._size) <= self._pool.free_blocks:
            stretch.later, stretch.most = later, steps

    def _quiet(self) -> int:
        """Steps up to the next event, the planned one included."""
        cohort, refusal = self._cohort, self.scheduler.refusal
        steps = cohort.until_end
        if not self._paged or steps == 1:
            return steps
        floor = 0
        if refusal is not None:
            if self._sharing:  # what the head needs may change with every block taken
                return 1
            if refusal.reason_may_change:
                floor = refusal.needed  # from there on it is refused for another reason
        spare = self._pool.free_blocks - floor
        most = cohort.size * self._each * -(-steps // self._size)
        if most <= spare:
            return steps
        for step in range(1, steps):
            spare -= len(cohort.beginning(cohort.tick + step)) * self._each
            if spare < 0:
                return step
        return steps

    def _take_blocks(self, ticks: range) -> None:
        """Give out the blocks of the steps after the planned one."""
        if not ticks:
            return
        stretch, cohort = self.stretch, self._cohort
        if not self._paged:
            stretch.free *= len(ticks) + 1
            stretch.room *= len(ticks) + 1
            return
        if self._sharing:
            self._take_one_by_one(ticks, self._sharing.pool)
            return
        beginning = [cohort.beginning(tick) for tick in ticks]
        blocks = self._pool.take(sum(map(len, beginning)) * self._each)
        assert blocks is not None, "the pool was looked at before"
        taken, free = iter(blocks), stretch.free[0]
        for tick, members in zip(ticks, beginning, strict=True):
            if members:
                self._hand_out(members, tick, taken)
                free -= len(members) * self._each
            stretch.free.append(free)
            stretch.room.append(self._room)

    def _take_one_by_one(self, ticks: range, pool: CachedPool) -> None:
        """The same where a block that is taken may hold what another is sealed with."""
        stretch, cohort = self.stretch, self._cohort
        for tick in ticks:
            self._seal(tick, [], moving=True)
            beginning = cohort.beginning(tick)
            if beginning:
                blocks = pool.take(len(beginning) * self._each)
                assert blocks is not None, "the pool was looked at before"
                self._hand_out(beginning, tick, iter(blocks))
            stretch.free.append(pool.free_blocks)
            stretch.room.append(self._room)
            stretch.cached.append(pool.cached_blocks)

    def _seal(self, tick: int, rows: list[Request], *, moving: bool) -> None:
        """Before ``tick``, seal what the step before it has filled, in the order of its rows."""
        filled = [(row.place, row, row.computed, row.in_flight) for row in rows]
        for member in self._cohort.beginning(tick) if moving else ():
            request = member.request
            if request.keys is not None:
                end = request.computed + tick - member.joined
                filled.append((member.place, request, end - 1, 1))
        filled.sort(key=_place)
        for _, request, first, count in filled:
            self.memory.seal(request, first, count)

    def _join(self, request: Request) -> None:
        """Let a request that decodes from now on into the cohort, if it stands where it should."""
        if self._at_its_edge(request, request.computed):
            self._prompts.remove(request)
            self._cohort.add(request, self._tables(request))
        elif self.config.prefill_first:
            self.leave()

    def _retire(self, finished: list[Request]) -> None:
        scheduler = self.scheduler
        if len(finished) > 1:
            finished.sort(key=PLACE)
        for request in finished:
            self._room -= self._room_of(request)
            place = bisect_left(scheduler.running, request.place, key=PLACE)
            del scheduler.running[place]
            request.state = RequestState.FINISHED
            self.memory.end(request)

    def _room_of(self, request: Request) -> int:
        """Tokens for which a request holds blocks, as far as it may come to fill them."""
        tables = self.memory.holding(request.id).tables
        if not tables:
            return 0
        return min(len(tables[0].ids) * self._size, request.most_slots)

    def _at_its_edge(self, request: Request, computed: int) -> bool:
        """Whether a request holds the blocks of so many computed tokens and no further one."""
        if not self._paged:
            return True
        held = len(self.memory.holding(request.id).tables[0].ids)
        return held == -(-computed // self._size)

    def _tables(self, request: Request) -> list[list[int]]:
        if not self._paged:
            return []
        return [table.ids for table in self.memory.holding(request.id).tables]


def _place(entry: tuple[tuple[int, int], Request, int, int]) -> tuple[int, int]:
    return entry[0]


_NOBODY: list[Request] = []
