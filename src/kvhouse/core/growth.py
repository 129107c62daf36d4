"""How the blocks of decoding requests are taken and sealed while nobody writes plans."""

from __future__ import annotations

from collections.abc import Iterator

from kvhouse.core.cached_pool import CachedPool
from kvhouse.core.cohort import Cohort, Member
from kvhouse.core.memory import KVMemory
from kvhouse.core.policy import PAGED
from kvhouse.core.request import Request
from kvhouse.core.stretch import Stretch


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

    def begin(self, beginning: list[Member]) -> None:
        """Give each of these its next blocks."""
        blocks = self._pool.take(len(beginning) * self.each)
        assert blocks is not None, "the pool was looked at before"
        self._hand_out(beginning, self.cohort.tick, iter(blocks))

    def _hand_out(self, beginning: list[Member], tick: int, blocks: Iterator[int]) -> None:
        for member in beginning:
            for table in member.tables:
                table.append(next(blocks))
        self.room += self._size * len(beginning) - self.cohort.excess.pop(tick, 0)

    def take(self, ticks: range, stretch: Stretch) -> None:
        """Give out the blocks of the steps after the planned one."""
        if not ticks:
            return
        cohort = self.cohort
        if not self.each:
            stretch.free *= len(ticks) + 1
            stretch.room *= len(ticks) + 1
            return
        if self._sharing:
            self._take_one_by_one(ticks, stretch, self._sharing.pool)
            return
        # Written out, since it is done for every step.
        begun = [cohort.beginning(tick) for tick in ticks]
        blocks = self._pool.take(sum(map(len, begun)) * self.each)
        assert blocks is not None, "the pool was looked at before"
        taken, excess, free, room = iter(blocks), cohort.excess, stretch.free[0], self.room
        for tick, members in zip(ticks, begun, strict=True):
            if members:
                for member in members:
                    for table in member.tables:
                        table.append(next(taken))
                free -= len(members) * self.each
                room += len(members) * self._size - excess.pop(tick, 0)
            stretch.free.append(free)
            stretch.room.append(room)
        self.room = room

    def _take_one_by_one(self, ticks: range, stretch: Stretch, pool: CachedPool) -> None:
        """The same where a block that is taken may hold what another is sealed with."""
        cohort = self.cohort
        for tick in ticks:
            self.seal(tick, [], moving=True)
            beginning = cohort.beginning(tick)
            if beginning:
                blocks = pool.take(len(beginning) * self.each)
                assert blocks is not None, "the pool was looked at before"
                self._hand_out(beginning, tick, iter(blocks))
            stretch.free.append(pool.free_blocks)
            stretch.room.append(self.room)
            stretch.cached.append(pool.cached_blocks)

    def seal(self, tick: int, rows: list[Request], *, moving: bool) -> None:
        """Before ``tick``, seal what the step before it has filled, in the order of its rows."""
        filled = [(row.place, row, row.computed, row.in_flight) for row in rows]
        for member in self.cohort.beginning(tick) if moving else ():
            request = member.request
            if request.keys is not None:
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
        return min(len(tables[0].ids) * self._size, request.most_slots)

    def at_its_edge(self, request: Request, computed: int) -> bool:
        """Whether a request holds the blocks of so many computed tokens and no further one."""
        if not self.each:
            return True
        held = len(self._memory.holding(request.id).tables[0].ids)
        return held == -(-computed // self._size)

    def tables(self, request: Request) -> list[list[int]]:
        """The block tables of a request that grow, each as the list that a holding has."""
        if not self.each:
            return []
        return [table.ids for table in self._memory.holding(request.id).tables]


def _place(entry: tuple[tuple[int, int], Request, int, int]) -> tuple[int, int]:
    return entry[0]
