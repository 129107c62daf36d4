"""How the blocks of requests are taken and sealed while nobody writes plans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from kvhouse.core.cached_pool import CachedPool
from kvhouse.core.cohort import Cohort, Member
from kvhouse.core.memory import KVMemory
from kvhouse.core.policy import PAGED
from kvhouse.core.request import Request
from kvhouse.core.stretch import Stretch
from kvhouse.core.windows import Windows


class Growth:
    """Takes for a cohort the blocks that stepping would take, in the same order.

    Attributes:
        cohort: Whose blocks they are.
        room: Tokens for which running requests hold blocks, as far as they may come to fill them.
        each: Blocks that a request takes at a time: one for each group of layers; 0 where it
            never takes any.
    """

    def __init__(self, memory: KVMemory, cohort: Cohort) -> None:
        self.cohort = cohort
        self.room = 0
        self._memory, self._pool, self._sharing = memory, memory.pool, memory.sharing
        self._size = memory.layout.block_size
        self.each = len(memory.layout.groups) if memory.policy == PAGED else 0
        #: What takes and lets go of blocks instead, where layers keep windows.
        self.windows = Windows(memory, cohort) if memory.layout.windows else None

    @property
    def spare(self) -> int:
        """Blocks that can be taken without anything being stored in a tier for it."""
        if self._sharing and self._sharing.tiers:
            return self._sharing.pool.empty_blocks
        return self._pool.free_blocks

    def join(self, request: Request) -> None:
        """Let a request into the cohort that decodes from now on."""
        tables: list[list[int]] = []
        if self.each:
            tables = [table.ids for table in self._memory.holding(request.id).tables]
        keys = request.keys if self._sharing else None
        keyed = keys is not None and keys.key(request.computed // self._size) is not None
        self.cohort.add(request, tables, keyed=keyed)

    def begin(self, beginning: list[Member]) -> None:
        """Give each of these its next blocks."""
        self._hand_out(beginning)
        tick = self.cohort.tick
        self._count(len(beginning), self.cohort.excess_in(tick, tick + 1))

    def take_turns(self, prompts: list[Request]) -> None:
        """Let members and prompts take and let go of blocks of windows for the planned step."""
        assert self.windows is not None, "only windows need turns"
        tick = self.cohort.tick
        self.room -= sum(map(self.room_of, prompts))
        self.windows.take_turns(tick, prompts)
        self.room += sum(map(self.room_of, prompts))
        self._count(len(self.cohort.beginning(tick)), self.cohort.excess_in(tick, tick + 1))

    def take(self, ticks: range, stretch: Stretch, going_on: Request | None = None) -> None:
        """Give out the blocks of the steps after the planned one.

        Args:
            ticks: The steps' ticks.
            stretch: What is to be known of them.
            going_on: The prompt that goes on in them; it is led on to before the last of them.
        """
        if not ticks:
            return
        if going_on and not self._sharing:
            self.go_on(going_on, len(ticks) - 1)
        if not self.each:
            stretch.begun = [0] * len(ticks)
            return
        beginning, stretch.begun = self.cohort.beginning_in(ticks)
        if self.windows:
            for tick in ticks:
                self.windows.take_turns(tick, [])
                stretch.unheld.append(self._pool.free_blocks)
        if self._sharing:
            self._take_one_by_one(ticks, beginning, stretch, self._sharing.pool, going_on)
        stretch.excess = self.cohort.excess_in(ticks.start, ticks.stop)
        members = list(chain.from_iterable(beginning))
        if members:
            if not self._sharing and not self.windows:
                self._hand_out(members)
            self._count(len(members), stretch.excess)

    def _hand_out(self, members: list[Member]) -> None:
        """Take members' next blocks."""
        blocks = self._pool.take(len(members) * self.each)
        assert blocks is not None, "the pool was looked at before"
        if self.each == 1:
            for place, member in enumerate(members):
                member.tables[0].append(blocks[place])
            return
        taken = iter(blocks)
        for member in members:
            for table in member.tables:
                table.append(next(taken))

    def _count(self, begun: int, excess: Sequence[tuple[int, int]]) -> None:
        """Take in that so many requests got blocks, and what of these will never be filled."""
        self.room += self._size * begun
        if excess:
            self.room -= sum(tokens for _, tokens in excess)

    def _take_one_by_one(
        self,
        ticks: range,
        beginning: list[list[Member]],
        stretch: Stretch,
        pool: CachedPool,
        going_on: Request | None,
    ) -> None:
        """The same where a block that is taken may hold what another is sealed with."""
        done = ticks.start
        for tick, members in zip(ticks, beginning, strict=True):
            if members:
                if going_on and tick > done:
                    self.go_on(going_on, tick - 1 - done)
                    self.seal(tick, [going_on], moving=True)
                    going_on.computed += going_on.in_flight
                    done = tick
                else:
                    self.seal(tick, [], moving=True)
                self._hand_out(members)
            stretch.cached.append(pool.cached_blocks)
        if going_on:
            self.go_on(going_on, ticks.stop - 1 - done)

    def go_on(self, request: Request, steps: int) -> None:
        """Take in what steps have computed of a prompt that nothing else happened beside."""
        count = steps * request.in_flight
        self._memory.seal(request, request.computed, count)
        request.computed += count

    def seal(self, tick: int, rows: list[Request], *, moving: bool) -> None:
        """Before ``tick``, seal what the step before it has filled, in the order of its rows."""
        filled = [(row.place, row, row.computed, row.in_flight) for row in rows]
        if moving and self.cohort.keyed:
            for member in self.cohort.beginning(tick):
                if member.keyed:
                    request = member.request
                    end = request.computed + tick - member.joined
                    filled.append((member.place, request, end - 1, 1))
            filled.sort(key=_place)
        for _, request, first, count in filled:
            self._memory.seal(request, first, count)

    def room_of(self, request: Request) -> int:
        """Tokens for which a request holds blocks, as far as it may come to fill them."""
        tables = self._memory.holding(request.id).tables
        if not tables:
            return 0
        held = tables[0].first + len(tables[0].ids)
        return min(held * self._size, request.most_slots)

    def at_its_edge(self, request: Request, computed: int) -> bool:
        """Whether a request holds the blocks of so many computed tokens and no further one."""
        if not self.each:
            return True
        edge = -(-computed // self._size)
        tables = self._memory.holding(request.id).tables
        if self.windows:
            return all(table.end == edge for table in tables)
        return len(tables[0].ids) == edge


def _place(entry: tuple[tuple[int, ...], Request, int, int]) -> tuple[int, ...]:
    return entry[0]
