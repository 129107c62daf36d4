"""The engine for asyncio: one thread advances it, and tasks get their own output."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from kvhouse.engine.asked import Asked, Output, give_all
from kvhouse.engine.chat import Turn
from kvhouse.engine.config import DEFAULT_CONFIG, EngineConfig
from kvhouse.engine.engine import GREEDY, Engine, Prompt
from kvhouse.engine.outputs import Completion, Token
from kvhouse.engine.prompt import refuse_a_single_prompt
from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.errors import KvhouseError

Result = TypeVar("Result")


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
        self._open: list[Asked] = []
        #: Outputs that wait for the end of the step, since each hand-over wakes an event loop.
        self._ready: list[tuple[Asked, Output]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvhouse-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs and was not told to end."""
        return self._thread.is_alive() and not self._closed.is_set()

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
        asked = self.ask(prompts, max_new_tokens, sampling, n, salt=salt)
        try:
            completions = None
            while completions is None:
                _, completions = await asked.take()
            return completions
        finally:
            self.drop(asked)

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
        asked = self.ask([prompt], max_new_tokens, sampling, n, salt=salt)
        try:
            completions = None
            while completions is None:
                tokens, completions = await asked.take()
                for _, token in tokens:
                    yield token
            for completion in completions:
                if completion.error is not None:
                    raise KvhouseError(completion.error)
        finally:
            self.drop(asked)

    async def chat_prompt(self, turns: Sequence[Turn]) -> list[int]:
        """The prompt of a conversation; see ``Engine.chat_prompt``.

        The engine's thread makes it, since a tokenizer serves one thread at a time.

        Raises:
            RequestRejected: The model has no chat template, or its template refuses the turns.
            KvhouseError: The engine was closed.
        """
        return await self.look(lambda engine: engine.chat_prompt(turns))

    async def look(self, function: Callable[[Engine], Result]) -> Result:
        """What a function says of the engine between two steps; its thread calls it.

        Raises:
            KvhouseError: The engine was closed.
        """
        made: Future[Result] = Future()

        def make() -> None:
            if not made.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            try:
                made.set_result(function(self.engine))
            except BaseException as error:
                made.set_exception(error)

        self._refuse_closed()
        self._commands.put(make)
        return await asyncio.wrap_future(made)

    def ask(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        sampling: SamplingParams = GREEDY,
        n: int = 1,
        *,
        salt: str | None = None,
    ) -> Asked:
        """Ask for answers that the caller takes step by step; ``drop`` what it gives in the end.

        What cannot be served is said by its ``take``. See ``Engine.ask``.

        Raises:
            KvhouseError: The engine was closed.
        """
        self._refuse_closed()
        asked = Asked()

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

    def drop(self, asked: Asked) -> None:
        """Free what was asked for before the next step, whether it has been answered or not."""
        self._commands.put(lambda: self._end(asked))

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

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise KvhouseError("the engine is closed")

    # What follows runs in the engine's thread.

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._obey()
                if self._open:
                    self._step()
            self._obey()
        finally:  # also after a failure that nobody foresaw: then at least nobody waits for ever
            self._closed.set()
            left = list(self._open)
            self._ready += [(asked, KvhouseError("the engine was closed")) for asked in left]
            self._hand_over()
            for asked in left:
                self._end(asked)

    def _obey(self) -> None:
        """Do what was asked for in the meantime; without open requests, wait for that."""
        try:
            while True:
                self._commands.get(block=not self._open and not self._closed.is_set())()
                if not self._open:  # the next command may be long in coming
                    self._hand_over()
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
        self._hand_over()

    def _deliver(self, asked: Asked) -> None:
        """Have what is new of one task's answers handed over."""
        tokens = [
            (place, token)
            for place, answers in enumerate(asked.answers)
            for token in answers.take_tokens()
        ]
        completions = None
        if all(answers.done for answers in asked.answers):
            completions = [done for answers in asked.answers for done in answers.completions]
            self._end(asked)
        if tokens or completions is not None:
            self._ready.append((asked, (tokens, completions)))

    def _fail(self, asked: Asked, error: BaseException) -> None:
        """Say what went wrong to whoever waits, and free what is held."""
        self._end(asked)
        self._ready.append((asked, error))

    def _hand_over(self) -> None:
        """Give everyone what there is for them, all those of one event loop at once."""
        ready, self._ready = self._ready, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Asked, Output]]] = {}
        for asked, output in ready:
            by_loop.setdefault(asked.loop, []).append((asked, output))
        for loop, outputs in by_loop.items():
            try:
                loop.call_soon_threadsafe(give_all, outputs)
            except RuntimeError:  # it is closed, so nobody will take them
                for asked, _ in outputs:
                    self._end(asked)

    def _end(self, asked: Asked) -> None:
        if asked in self._open:
            self._open.remove(asked)
        for answers in asked.answers:
            answers.cancel()
