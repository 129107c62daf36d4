"""How requests take and let go of blocks beside each other where layers keep a window of tokens."""

from __future__ import annotations

from kvhouse.core.cohort import Cohort
from kvhouse.core.memory import KVMemory
from kvhouse.core.request import Request
from kvhouse.core.stretch import Stretch


class Windows:
    """Has the memory do for each request what it does when every step is planned alone.

    It is asked only in the ticks in which it would do anything; see ``Cohort.due``.
    """

    def __init__(self, memory: KVMemory, cohort: Cohort) -> None:
        self._memory, self._cohort = memory, cohort
        kinds = [kind for _, kind in memory.layout.kinds]
        #: Bytes of a token in all layers of each window, in the order of ``Cohort.seen``.
        self._token_bytes = [
            sum(kind.entry_bytes for kind in kinds if kind.reach.tokens == window)
            for window in memory.layout.windows
        ]
        #: Groups whose blocks pass out of each window.
        self._groups = [
            sum(group.reach.tokens == window for group in memory.layout.groups)
            for window in memory.layout.windows
        ]

    def most_needed(self, prompts: list[Request]) -> int:
        """Blocks that prompts take for what they are to compute, if nothing is let go of."""
        needed = 0
        for request in prompts:
            if request.in_flight:
                end = request.computed + request.in_flight
                for table in self._memory.holding(request.id).tables:
                    needed += max(0, table.group.end_block(end) - table.end)
        return needed

    def take_turns(self, tick: int, prompts: list[Request]) -> None:
        """Let everyone whose turn it is take and let go of blocks, in the requests' order."""
        due = self._cohort.due(tick)
        if not due and not prompts:
            return
        turns = [(request, request.in_flight) for request in prompts if request.in_flight]
        for member in due:
            member.sync(tick)
            turns.append((member.request, 1))
        if len(turns) > 1:
            turns.sort(key=_place)
        for request, count in turns:
            grown = self._memory.grow(request, request.computed + count)
            assert grown, "the pool was looked at before"

    def quiet(self, steps: int, floor: int, ceiling: int) -> int:
        """Of steps after a planned one, those up to which the free blocks stay within bounds.

        Args:
            steps: Steps, the planned one included.
            floor: The fewest free blocks.
            ceiling: A number that they must not reach.
        """
        cohort = self._cohort
        low = high = self._memory.pool.free_blocks
        each = len(self._memory.layout.groups)
        for step in range(1, steps):
            tick = cohort.tick + step
            low -= each * len(cohort.beginning(tick))
            for number, seen in enumerate(cohort.seen):
                high += self._groups[number] * len(cohort.beginning(tick - seen.most))
            if low < floor or high >= ceiling:
                return step
        return steps

    def describe(self, stretch: Stretch, prompts: list[Request]) -> None:
        """Note what of the requests' tokens no layer with a window needs any more."""
        cohort, size = self._cohort, self._memory.layout.block_size
        stretch.seen = [(seen.tokens, seen.growing) for seen in cohort.seen]
        stretch.passed = stretch.passing = stretch.short = 0
        for number, seen in enumerate(cohort.seen):
            stretch.passed += self._token_bytes[number] * (cohort.computed - seen.tokens)
            stretch.passing += self._token_bytes[number] * (cohort.size - seen.growing)
        for request in prompts:
            tables = self._memory.holding(request.id).tables
            room = min(tables[0].end * size, request.most_slots)
            for index, kind in self._memory.layout.kinds:
                passed = kind.reach.first(request.computed)
                short = room - min(tables[index].end * size, request.most_slots)
                stretch.passed += kind.entry_bytes * passed
                stretch.short += kind.entry_bytes * short


def _place(turn: tuple[Request, int]) -> tuple[int, ...]:
    return turn[0].place
