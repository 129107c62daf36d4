"""The engine for asyncio: one thread advances it, and tasks get their own output."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from kvhouse.engine.answers import Answers
from kvhouse.engine.chat import Turn
from kvhouse.engine.config import DEFAULT_CONFIG, EngineConfig
from kvhouse.engine.engine import GREEDY, Engine, Prompt
from kvhouse.engine.outputs import Completion, Token
from kvhouse.engine.prompt import refuse_a_single_prompt
from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.errors import KvhouseError

#: What comes of a step: new tokens, then all completions when there is no more to come; or why
#: there is none.
Output = tuple[list[Token], list[Completion] | None] | BaseException


class _Asked:
    """What one task has asked for, between its event loop and the engine's thread."""

    def __init__(self) -> None:
        self.answers: list[Answers] = []
        self._loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()

    def give(self, output: Output) -> None:
        """Hand an output over; called from the engine's thread.

        Raises:
            RuntimeError: The event loop is closed, so nobody will take it.
        """
        self._loop.call_soon_threadsafe(self._outputs.put_nowait, output)

    async def take(self) -> tuple[list[Token], list[Completion] | None]:
        """Wait for the next output; raises what went wrong."""
        output = await self._outputs.get()
        if isinstance(output, BaseException):
            raise output
        return output


class AsyncEngine:
    """Serves one model to many tasks.

    A thread of its own advances the engine as long as there is work, and sleeps otherwise. A task
    that is cancelled, or a stream that is closed, frees what it holds before the next step. Close
    the engine, or use it as an asynchronous context manager, so that the thread ends.

    Args:
        engine: The engine, which nobody else may use from then on.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open: list[_Asked] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvhouse-engine", daemon=True)
        self._thread.start()

    @classmethod
    async def load(
        cls, model: str | Path, config: EngineConfig = DEFAULT_CONFIG, dtype: str = "float32"
    ) -> Self:
        """Load a model, in another thread, and build its engine; see ``Engine.load``."""
        return cls(await asyncio.to_thread(Engine.load, model, config, dtype))

    async def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        sampling: SamplingParams = GREEDY,
        n: int = 1,
        *,
        salt: str | None = None,
    ) -> list[Completion]:
        """Answer all prompts, each ``n`` times; see ``Engine.generate``.

        Raises:
            RequestRejected: One of the prompts cannot be served; then none is.
            KvhouseError: The engine was closed.
        """
        refuse_a_single_prompt(prompts)
        asked = self._ask(prompts, max_new_tokens, sampling, n, salt)
        try:
            completions = None
            while completions is None:
                _, completions = await asked.take()
            return completions
        finally:
            self._drop(asked)

    async def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        sampling: SamplingParams = GREEDY,
        n: int = 1,
        *,
        salt: str | None = None,
    ) -> AsyncGenerator[Token, None]:
        """Answer one prompt token by token; see ``Engine.stream``.

        A loop that is left early closes the stream when the garbage collector finds it; use
        ``contextlib.aclosing`` to have it closed, and its memory freed, at once.

        Raises:
            RequestRejected: The prompt cannot be served.
            KvhouseError: No token could be found for a position, or the engine was closed.
        """
        asked = self._ask([prompt], max_new_tokens, sampling, n, salt)
        try:
            completions = None
            while completions is None:
                tokens, completions = await asked.take()
                for token in tokens:
                    yield token
            for completion in completions:
                if completion.error is not None:
                    raise KvhouseError(completion.error)
        finally:
            self._drop(asked)

    async def chat_prompt(self, turns: Sequence[Turn]) -> list[int]:
        """The prompt of a conversation; see ``Engine.chat_prompt``.

        The engine's thread makes it, since a tokenizer serves one thread at a time.

        Raises:
            RequestRejected: The model has no chat template, or its template refuses the turns.
            KvhouseError: The engine was closed.
        """
        made: Future[list[int]] = Future()

        def make() -> None:
            try:
                made.set_result(self.engine.chat_prompt(turns))
            except BaseException as error:
                made.set_exception(error)

        self._refuse_closed()
        self._commands.put(make)
        return await asyncio.wrap_future(made)

    async def close(self) -> None:
        """End the thread after the step under way; whoever still waits gets an error."""
        self._closed.set()
        self._commands.put(lambda: None)  # so that it wakes up
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _ask(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        sampling: SamplingParams,
        n: int,
        salt: str | None = None,
    ) -> _Asked:
        self._refuse_closed()
        asked = _Asked()

        def ask() -> None:
            try:
                self._open.append(asked)
                for prompt in prompts:
                    answers = self.engine.ask(prompt, max_new_tokens, sampling, n, salt=salt)
                    asked.answers.append(answers)
            except BaseException as error:
                self._fail(asked, error)

        self._commands.put(ask)
        return asked

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise KvhouseError("the engine is closed")

    def _drop(self, asked: _Asked) -> None:
        self._commands.put(lambda: self._end(asked))

    # What follows runs in the engine's thread.

    def _run(self) -> None:
        while not self._closed.is_set():
            self._obey()
            if self._open:
                self._step()
        self._obey()
        for asked in list(self._open):
            self._fail(asked, KvhouseError("the engine was closed"))

    def _obey(self) -> None:
        """Do what was asked for in the meantime; without open requests, wait for that."""
        try:
            while True:
                self._commands.get(block=not self._open and not self._closed.is_set())()
        except Empty:
            pass

    def _step(self) -> None:
        try:
            self.engine.step()
        except BaseException as error:
            for asked in list(self._open):
                self._fail(asked, error)
        for asked in list(self._open):
            self._deliver(asked)

    def _deliver(self, asked: _Asked) -> None:
        """Hand over what is new of one task's answers."""
        tokens = [token for answers in asked.answers for token in answers.take_tokens()]
        completions = None
        if all(answers.done for answers in asked.answers):
            completions = [done for answers in asked.answers for done in answers.completions]
            self._end(asked)
        if tokens or completions is not None:
            self._give(asked, (tokens, completions))

    def _fail(self, asked: _Asked, error: BaseException) -> None:
        """Say what went wrong to whoever waits, and free what is held."""
        self._end(asked)
        self._give(asked, error)

    def _give(self, asked: _Asked, output: Output) -> None:
        try:
            asked.give(output)
        except RuntimeError:  # its event loop is closed
            self._end(asked)

    def _end(self, asked: _Asked) -> None:
        if asked in self._open:
            self._open.remove(asked)
        for answers in asked.answers:
            answers.cancel()
