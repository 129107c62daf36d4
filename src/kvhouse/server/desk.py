"""The desk: takes requests into the engine as far as there is room, and keeps count of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvhouse.core.rejection import longest_request, most_new_tokens
from kvhouse.engine import AsyncEngine
from kvhouse.engine.prompt_thread import Prompts
from kvhouse.server.errors import ApiError, about_to_end
from kvhouse.server.metrics import Metrics
from kvhouse.server.settings import MOST_ANSWERS, ServerSettings
from kvhouse.server.sight import describe
from kvhouse.server.totals import StepTotals

#: The longest time that a refused client is told to wait, in seconds.
_LONGEST_WAIT = 60
#: How much of the mean latency's old value stays with each request.
_MEMORY = 0.9


class Desk:
    """What all requests of one server share.

    Args:
        engine: The engine, which nobody else may use from then on.
        settings: Names and limits.
    """

    def __init__(self, engine: AsyncEngine, settings: ServerSettings) -> None:
        inner = engine.engine
        self.engine = engine
        self.settings = settings
        self.prompts = Prompts(inner.tokenizer, inner.spec.vocab_size)
        self.totals = StepTotals(inner)
        inner.observer = self.totals
        self.metrics = Metrics(self.totals, describe(inner))
        self._memory = inner.scheduler.memory
        #: The longest request that the engine allows, and the longest that its pool can hold too.
        self.length_limit = inner.scheduler.config.max_length
        self.max_length = longest_request(self._memory, self.length_limit)
        #: Whether the server was told to end, and takes nothing new.
        self.closing = False
        self._answers = 0
        self._latency = 0.0
        #: Waits for bodies that are on their way.
        self._reading: set[asyncio.Timeout] = set()

    @property
    def waiting(self) -> int:
        """Answers that were accepted and do not hold memory yet."""
        return max(0, self._answers - len(self.engine.engine.scheduler.running))

    def require_model(self, name: str) -> None:
        """Refuse a request for another model.

        Raises:
            ApiError: 404.
        """
        if name != self.settings.model:
            raise ApiError(
                404,
                f"no such model: this server has {self.settings.model}",
                param="model",
                code="model_not_found",
            )

    @contextmanager
    def admitted(self, answers: int) -> Iterator[Callable[[int], None]]:
        """Hold a place for so many answers, and give what lets go of those that have ended.

        Raises:
            ApiError: 503 where the server is about to end, 429 where the queue is full, 400 where
                no server takes so many.
        """
        if self.closing:
            raise about_to_end()
        if answers > MOST_ANSWERS:
            raise ApiError(
                400, f"{answers} answers in one request: ask for at most {MOST_ANSWERS}", param="n"
            )
        waiting, most = self.waiting, self.settings.max_queue
        if waiting and waiting + answers > most:
            raise ApiError(
                429,
                f"{waiting} answers wait already, of at most {most}: try again later",
                code="queue_full",
                headers={"retry-after": str(self._wait())},
            )
        left = answers
        self._answers += answers

        def let_go(ended: int) -> None:
            nonlocal left
            left -= ended
            self._answers -= ended

        try:
            yield let_go
        finally:
            let_go(left)

    @contextmanager
    def reading(self, wait: asyncio.Timeout) -> Iterator[None]:
        """Note a wait for a body, so that ``stop_reading`` can end it."""
        self._reading.add(wait)
        try:
            yield
        finally:
            self._reading.discard(wait)

    def stop_reading(self) -> None:
        """Wait for no body any more: what it asks for would be refused."""
        self.closing = True
        now = asyncio.get_running_loop().time()
        for wait in self._reading:
            if not wait.expired():  # by itself, just now: its task has yet to notice
                wait.reschedule(now)

    def room_for(self, prompts: list[list[int]], asked: int | None) -> int:
        """Tokens of the longest answer that each prompt may get.

        Args:
            prompts: Token ids of each prompt.
            asked: Tokens that were asked for; None for all that there is room for.

        Raises:
            ApiError: 400 where a prompt, or what was asked for with it, is longer than is allowed.
        """
        longest = max(map(len, prompts))
        most = min(self.settings.max_prompt or self.max_length, self.max_length - 1)
        if longest > most:
            raise ApiError(
                400,
                f"the prompt has {longest:,} tokens, and {max(most, 0):,} are allowed",
                code="context_length_exceeded",
            )
        room = most_new_tokens(longest, self._memory, self.length_limit)
        if asked is not None and asked > room:
            raise ApiError(
                400,
                f"{longest:,} prompt + {asked:,} new tokens exceed the maximum length of "
                f"{self.max_length:,} tokens: ask for at most {room:,} new tokens, or shorten the "
                "prompt",
                code="context_length_exceeded",
            )
        return room if asked is None else asked

    def took(self, seconds: float) -> None:
        """Take note of how long a request took."""
        self.metrics.latency.observe(seconds)
        self._latency = _MEMORY * self._latency + (1 - _MEMORY) * seconds

    def _wait(self) -> int:
        """Seconds until the queue will be shorter, estimated from the requests before."""
        running = len(self.engine.engine.scheduler.running)
        wait = self._latency * self.waiting / max(1, running)
        return max(1, min(_LONGEST_WAIT, math.ceil(wait)))

    async def close(self) -> None:
        """End the engine's thread; whoever still waits is told so."""
        self.closing = True
        await self.engine.close()
        self.prompts.close()
