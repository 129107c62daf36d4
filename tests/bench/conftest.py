"""A loop on virtual time, and a target that answers by it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvhouse.bench.target import Ask, Failed, Piece, Usage


class _Waiting(selectors.DefaultSelector):
    """Instead of waiting it moves the clock on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        assert timeout is not None, "everyone waits for what never comes"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waiting = _Waiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._waiting.now


@pytest.fixture(scope="session")
def virtually() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine on virtual time."""

    def run(coroutine):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(coroutine)

    return run


@dataclass
class FakeTarget:
    """Answers each request after its own delays, by the loop's clock.

    ``script`` gives for a request's number the delays before each of its tokens, and what then
    ends it: a usage, a failure, or None.
    """

    script: Callable[[int], tuple[list[float], Usage | Failed | None]]
    about: dict[str, str] = field(default_factory=lambda: {"target": "fake", "model": "m"})
    vocab_size: int = 50
    asked: list[Ask] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    async def ask(self, request: Ask) -> AsyncGenerator[Piece | Usage, None]:
        number = len(self.asked)
        self.asked.append(request)
        delays, end = self.script(number)
        try:
            for delay in delays:
                await asyncio.sleep(delay)
                yield Piece(1)
            if isinstance(end, Failed):
                raise end
            if end is not None:
                yield end
        finally:
            self.closed.append(number)


@pytest.fixture(scope="session")
def fake_target() -> type[FakeTarget]:
    return FakeTarget
