"""A request under way: what it found, computed and lost."""

from __future__ import annotations

from kvhouse.core.request import Request, RequestState
from kvhouse.replayer.records import RequestRecord, Unfinished


class Live:
    """A request under way.

    Attributes:
        record: What will be known of it.
        request: The scheduler's.
        begun: Tokens that it had in the pool when it was last admitted, those to load included.
        reached: The most tokens that it ever had there before that.
        loaded: Tokens that it loaded by its last admission but one.
    """

    __slots__ = ("begun", "loaded", "reached", "record", "request")

    def __init__(self, record: RequestRecord, request: Request) -> None:
        self.record = record
        self.request = request
        self.begun = self.reached = self.loaded = 0

    def admit(self) -> tuple[int, int]:
        """Take in that it got memory; returns the tokens found there, and those to load."""
        self.begun = self.request.computed
        loading = self.request.loaded - self.loaded
        found = self.begun - loading
        if not self.request.preemptions:  # for the first time, but for loads that failed
            self.record.found, self.record.loaded_first = found, loading
        return found, loading

    def leave(self, computed: int) -> None:
        """Take in that it gives its memory back, with so many tokens computed."""
        if self.begun > self.reached:
            self.record.reused += self.begun - self.reached
        elif self.begun < self.reached:
            self.record.recomputed += max(0, min(computed, self.reached) - self.begun)
        self.reached = max(self.reached, computed)
        self.loaded = self.request.loaded

    def note(self) -> None:
        """Write down what the scheduler counted."""
        record, request = self.record, self.request
        record.generated, record.preemptions = request.generated, request.preemptions
        record.taken_up, record.loaded = request.reused, request.loaded

    def break_off(self) -> Unfinished:
        """Take in that the drive ends here."""
        held = self.request.computed
        if self.request.state is RequestState.RUNNING:
            self.leave(held)
        self.note()
        return Unfinished(self.record, self.reached, held)
