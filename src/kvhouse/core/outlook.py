"""How far a leap reaches: how many steps are like the one before, but for the tokens they count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhouse.core.cohort import Cohort
from kvhouse.core.growth import Growth
from kvhouse.core.request import Request
from kvhouse.core.stretch import Stretch
from kvhouse.core.tiers import Tiers

if TYPE_CHECKING:
    from kvhouse.core.scheduler import Scheduler


class Outlook:
    """Looks ahead from a planned step, without changing anything."""

    def __init__(self, scheduler: Scheduler, cohort: Cohort, growth: Growth) -> None:
        self._scheduler, self._config = scheduler, scheduler.config
        self._memory, self._pool = scheduler.memory, scheduler.memory.pool
        self._cohort, self._growth = cohort, growth
        self._size, self._tiers = scheduler.memory.layout.block_size, scheduler.memory.tiers

    def look_beyond(self, stretch: Stretch, prompts: list[Request]) -> None:
        """Let steps follow where the first step's other rows decode from then on.

        The last of them may be a part of a prompt, which then takes what is left of the budget.

        Args:
            stretch: Its first step; how many may follow, and what they compute, is written down.
            prompts: Running requests that do not decode, in order.
        """
        cohort, rows = self._cohort, stretch.prompts
        if self._config.prefill_first or self._growth.windows:
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
        later, idle = cohort.size + len(starting), len(prompts) - len(rows)
        chunk = self._config.token_budget - later
        if left:
            if chunk <= 0 or not self._comes_last(last, idle):
                return
            steps = min(steps, 1 + (left - 1) // chunk)
        elif chunk < 0 or idle or not self._nobody_follows():
            return
        spare = self._growth.spare if self._tiers else self._pool.free_blocks
        if later * self._growth.each * -(-steps // self._size) <= spare:
            stretch.later, stretch.most = later, steps
            if left:
                stretch.chunk, stretch.chunk_first = chunk, last.known - left

    def leaves_alone(self, tiers: Tiers, needed: int) -> bool:
        """Whether a step that takes so many blocks for decoding neither loads nor stores."""
        if needed > self._growth.spare:
            return False
        waiting, full = self._scheduler.waiting, self._config.max_running
        if waiting.head is None or len(self._scheduler.running) == full:
            return True
        if not tiers.empty:
            return False
        for request in waiting.in_any_order():
            needed += self._memory.blocks_to_admit(request)
            if needed > self._growth.spare:
                return False
        return True

    def quiet(self) -> int:
        """Steps up to the next event, the planned one included, where all rows decode."""
        cohort = self._cohort
        steps = cohort.until_end
        for seen in cohort.seen:
            steps = min(steps, seen.until_full(cohort.tick))
        if not self._growth.each or steps == 1:
            return steps
        floor = self._floor()
        if floor is None:
            return 1
        spare = self._pool.free_blocks - floor
        if self._tiers:
            spare = min(spare, self._growth.spare)
        most = cohort.size * self._growth.each * -(-steps // self._size)
        if self._growth.windows and (most > spare or self._scheduler.refusal):
            return self._growth.windows.quiet(steps, floor, self._ceiling())
        if most <= spare:
            return steps
        for step in range(1, steps):
            spare -= len(cohort.beginning(cohort.tick + step)) * self._growth.each
            if spare < 0:
                return step
        return steps

    def _comes_last(self, prompt: Request, idle: int) -> bool:
        """Whether none but so many prompts, whose turn has not come, run after one in the order."""
        return self._scheduler.running[-1 - idle] is prompt

    def _nobody_follows(self) -> bool:
        """Whether nobody is admitted after a step with rows, while only blocks are taken."""
        scheduler, refusal = self._scheduler, self._scheduler.refusal
        if refusal is None:
            full = len(scheduler.running) == self._config.max_running
            return full or scheduler.waiting.head is None
        # What the rows compute may be what the head of the queue lacks.
        return not self._memory.sharing and not refusal.reason_may_change

    def _floor(self) -> int | None:
        """Free blocks down to which the head of the queue is refused as it was, for one reason.

        None where that may change with every step.
        """
        refusal, head = self._scheduler.refusal, self._scheduler.waiting.head
        if refusal is None or head is None:
            return 0
        needed = refusal.needed
        if self._memory.sharing:
            if self._cohort.keyed:  # what they fill may be what it lacks
                return None
            # It may lose what it found, and then needs more, but no more than this.
            needed = self._memory.blocks_to_admit(head)
        return needed if refusal.reason_may_change else 0

    def _ceiling(self) -> int:
        """Free blocks at which the head of the queue may be admitted, or refused otherwise."""
        refusal = self._scheduler.refusal
        if refusal is None or refusal.no_slot:
            return 2**62
        return refusal.needed + refusal.held_back * refusal.reason_may_change
