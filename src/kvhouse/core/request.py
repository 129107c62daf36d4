"""A request as the scheduler sees it: counts of tokens, never their values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvhouse.core.keys import BlockKeys


class RequestState(StrEnum):
    """Where a request is. There is no prefill or decode state: see ``Request.remaining``."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False, init=False)
class Request:
    """One sequence on its way through the house.

    ``computed`` tokens chase the ``known`` ones; prefill, chunked prefill, decode and resuming
    after a preemption are all the same chase.

    Attributes:
        id: Submission number. It alone orders requests; no clock does.
        prompt_tokens: Tokens known from the start.
        max_new_tokens: The most tokens that may be generated.
        generated: Tokens sampled so far.
        computed: Tokens whose keys and values lie in the pool.
        in_flight: Tokens that the step under way is computing.
        preemptions: How often it lost its memory.
        reused: Tokens that were found in the pool when it was admitted, over all admissions.
        loaded: Tokens that were loaded from tiers below the pool, over all admissions.
        setbacks: How often such a load failed and sent it back to the queue.
        priority: Its place where the scheduler goes by priority; lower goes first.
        keys: What its blocks hold, where prefixes can be shared.
        state: Where it is.
        place: Where it stands in the scheduler's order.
    """

    id: int
    prompt_tokens: int
    max_new_tokens: int
    generated: int
    computed: int
    in_flight: int
    preemptions: int
    reused: int
    loaded: int
    setbacks: int
    priority: int
    keys: BlockKeys | None
    state: RequestState
    place: tuple[int, ...]

    def __init__(
        self,
        id: int,
        prompt_tokens: int,
        max_new_tokens: int,
        generated: int = 0,
        *,
        priority: int = 0,
        keys: BlockKeys | None = None,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.generated = generated
        self.computed = self.in_flight = 0
        self.preemptions = self.reused = self.loaded = self.setbacks = 0
        self.priority = priority
        self.keys = keys
        self.state = RequestState.WAITING
        self.place = (0, id)

    @property
    def known(self) -> int:
        """Tokens whose values are known: the prompt and what was sampled."""
        return self.prompt_tokens + self.generated

    @property
    def remaining(self) -> int:
        """Known tokens that no step has taken up yet; one of them for a decoding request."""
        return self.known - self.computed - self.in_flight

    @property
    def decoding(self) -> bool:
        """Whether its next step computes the token that was sampled last and no other."""
        return self.generated > 0 and self.known - self.computed == 1

    @property
    def most_slots(self) -> int:
        """The most tokens this request can ever keep: the last sampled one is never computed."""
        return self.prompt_tokens + self.max_new_tokens - 1
