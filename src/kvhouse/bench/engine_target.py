"""A load's target in this process: an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from kvhouse.bench.target import Ask, Failed, Piece, Usage
from kvhouse.engine import AsyncEngine, SamplingParams
from kvhouse.errors import KvhouseError, RequestRejected

_WARM_UP = 8
_GREEDY = SamplingParams(ignore_eos=True)


class EngineTarget:
    """Sends requests to an engine.

    Args:
        engine: The engine.
        model: Its model's name.
    """

    def __init__(self, engine: AsyncEngine, model: str) -> None:
        self.about: dict[str, Any] = {
            "target": "engine",
            "model": model,
            "prompts": "ids",
            "end_of_sequence": "ignored",
            "paths": engine.engine.paths.to_dict(),
        }
        self.vocab_size = engine.engine.spec.vocab_size
        self._engine = engine

    async def warm_up(self) -> None:
        """One short answer, so that nothing is done for the first time under load."""
        async for _ in self.ask(Ask([0] * _WARM_UP, 2)):
            pass

    async def ask(self, request: Ask) -> AsyncGenerator[Piece | Usage, None]:
        """See ``Target.ask``."""
        given = 0
        stream = self._engine.stream(request.prompt, request.new_tokens, _GREEDY)
        try:
            async with aclosing(stream) as tokens:
                async for _ in tokens:
                    given += 1
                    yield Piece(1)
        except RequestRejected as error:
            raise Failed("rejected", str(error)) from None
        except KvhouseError as error:
            raise Failed("server", str(error)) from None
        yield Usage(len(request.prompt), given)
