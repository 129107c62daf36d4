"""What a drive writes down: its requests, and how time passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvhouse.replayer.intervals import Interval, Intervals


@dataclass(slots=True, init=False)
class RequestRecord:
    """What became of a request. Times are seconds on the drive's clock.

    Attributes:
        index: Its place among all requests that arrived, rejected ones included.
        prompt_tokens: Length of its prompt.
        max_new_tokens: The most tokens it may generate.
        arrival: When it arrived.
        rejection: Why it was refused, if it was; then nothing below is set.
        admitted: When the step began in which it first got memory.
        first_token: When the step ended that gave its first token.
        finished: When the step ended that gave its last token.
        generated: Tokens it got.
        preemptions: How often it lost its memory.
        request: Its id in the scheduler; None if it was rejected.
        found: Prompt tokens that were in the pool when it was first admitted.
        loaded_first: Prompt tokens that it loaded from tiers then.
        reused: Tokens that it never computed, because another's were in the pool or a tier:
            ``found``, ``loaded_first``, and what it met beyond its own after a preemption.
        recomputed: Tokens that it computed again after preemptions.
        taken_up: Tokens that were in the pool when it was admitted, over all admissions.
        loaded: Tokens that it loaded from tiers, over all admissions.
        lost: Tokens that it had in the pool when it lost its memory, over all preemptions.
    """

    index: int
    prompt_tokens: int
    max_new_tokens: int
    arrival: float
    rejection: str | None
    admitted: float | None
    first_token: float | None
    finished: float | None
    generated: int
    preemptions: int
    request: int | None
    found: int
    loaded_first: int
    reused: int
    recomputed: int
    taken_up: int
    loaded: int
    lost: int

    def __init__(self, index: int, prompt_tokens: int, max_new_tokens: int, arrival: float) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.arrival = arrival
        self.rejection = self.request = None
        self.admitted = self.first_token = self.finished = None
        self.generated = self.preemptions = self.lost = 0
        self.found = self.loaded_first = self.reused = self.recomputed = 0
        self.taken_up = self.loaded = 0

    @property
    def queue_seconds(self) -> float:
        """From arrival until the first memory."""
        return self._since_arrival(self.admitted)

    @property
    def first_token_seconds(self) -> float:
        """From arrival to the first token."""
        return self._since_arrival(self.first_token)

    @property
    def latency_seconds(self) -> float:
        """From arrival to the last token."""
        return self._since_arrival(self.finished)

    @property
    def per_token_seconds(self) -> float | None:
        """From the first token to the last, per token after the first; None for one token."""
        if self.generated < 2:
            return None
        return (self.latency_seconds - self.first_token_seconds) / (self.generated - 1)

    def _since_arrival(self, moment: float | None) -> float:
        if moment is None:
            raise RuntimeError(f"request {self.index} finished without having begun")
        return moment - self.arrival


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A request that was under way when a drive ended early.

    Attributes:
        record: What became of it so far.
        reached: The most tokens that it ever had in the pool.
        held: Tokens that it has there.
    """

    record: RequestRecord
    reached: int
    held: int


@dataclass(slots=True)
class DriveLog:
    """Everything a drive saw.

    Attributes:
        timing: ``modelled`` or ``measured``, as the executor says.
        requests: In the order of arrival.
        intervals: Without gaps, from time 0 to the end.
        sampled: Tokens that steps gave.
        refusals: How often the head of the queue was refused memory, by reason; a refusal that
            lasts for many steps counts once.
        unfinished: What a drive left that ended early.
    """

    timing: str
    requests: list[RequestRecord] = field(default_factory=list)
    intervals: Sequence[Interval] = field(default_factory=Intervals)
    sampled: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    unfinished: list[Unfinished] = field(default_factory=list)
