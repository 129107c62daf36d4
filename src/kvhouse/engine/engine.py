"""The engine: prompts in, tokens out, on the scheduler and the pages of the core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvhouse.core.check import check
from kvhouse.core.keys import TokenKeys
from kvhouse.core.memory import KVMemory
from kvhouse.core.scheduler import Scheduler
from kvhouse.engine.answers import Answers
from kvhouse.engine.chat import Turn, chat_ids
from kvhouse.engine.config import DEFAULT_CONFIG, EngineConfig
from kvhouse.engine.executor import TorchExecutor
from kvhouse.engine.fast.paths import Paths
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.live import LiveRequest
from kvhouse.engine.load import LoadedModel, describe_model, load_model
from kvhouse.engine.observer import StepObserver
from kvhouse.engine.outputs import Completion, StepOutput, Token
from kvhouse.engine.prompt import (
    prompt_ids,
    refuse_a_single_prompt,
    refuse_texts_without_tokenizer,
)
from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.engine.tiering import make_stores, tiers_below
from kvhouse.layout import KVLayout, PoolSize

Prompt = str | Sequence[int]

GREEDY = SamplingParams()


class Engine:
    """Serves one model.

    Requests come in by ``generate`` (all answers at once), ``stream`` (token by token) or
    ``submit`` and ``step`` (the caller leads). The three can be mixed: whoever advances the
    engine advances everyone, and each gets the output of its own requests only.

    Raises:
        UnsupportedModel: The engine would not compute this model exactly.
        KvhouseError: A setting is out of range, or the memory is not there.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig = DEFAULT_CONFIG) -> None:
        spec = loaded.spec
        limits = config.limits(spec)
        layout = KVLayout.of(spec, config.kv_format, config.block_size, dtype=loaded.dtype)
        size = layout.pool_in(config.kv_memory, limits.max_length, limits.token_budget)
        below = tiers_below(config.tiering, spec, layout, config.tier_directory, config.load_rule)
        memory = config.make_memory(limits, layout, size, below)
        self.spec = spec
        self.config = config
        self.tokenizer = loaded.tokenizer
        self.scheduler = Scheduler(memory, limits)
        self.kv = KVTensors(spec, layout, size, rotate=config.kv_rotation)
        stores = make_stores(below.tiers, layout, config.tier_directory)
        self.executor = TorchExecutor.on(self.kv, loaded, config, stores)
        #: Bytes of the pool that requests held in the step before.
        self.held_bytes = 0
        #: Told of every step once it is taken in.
        self.observer: StepObserver | None = None
        self._live: dict[int, LiveRequest] = {}
        self._answers: list[Answers] = []

    @classmethod
    def load(
        cls, model: str | Path, config: EngineConfig = DEFAULT_CONFIG, dtype: str = "float32"
    ) -> Engine:
        """Load a model and build its engine; see ``load_model`` for what can be loaded.

        What the engine cannot do is refused before the weights are read.
        """
        config.refuse_impossible(describe_model(model))
        return cls(load_model(model, dtype), config)

    @property
    def paths(self) -> Paths:
        """Which way the model's blocks are computed."""
        return self.executor.adapter.paths

    @property
    def has_work(self) -> bool:
        """Whether a request is under way, or output waits to be fetched with ``step``."""
        return bool(self._live)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt.

        Raises:
            RequestRejected: It is empty or no prompt for this model.
        """
        return prompt_ids(prompt, self.tokenizer, self.spec.vocab_size)

    def chat_prompt(self, turns: Sequence[Turn]) -> list[int]:
        """The prompt of a conversation, by the model's own chat template.

        Args:
            turns: Who speaks and what: ``{"role": "user", "content": "Hello"}``.

        Raises:
            RequestRejected: The model has no chat template, or its template refuses the turns.
        """
        return chat_ids(turns, self.tokenizer)

    def submit(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        sampling: SamplingParams = GREEDY,
        *,
        salt: str | None = None,
    ) -> int:
        """Put a request in the queue and return its id; ``step`` then gives its output.

        With a prefix cache, requests share blocks only where their ``salt`` is the same.

        Raises:
            RequestRejected: The prompt is empty or no prompt for this model, or the request could
                never finish in this pool.
        """
        ids = self.prompt_ids(prompt)
        return self._submit(ids, max_new_tokens, sampling, salt=salt, led_by_caller=True).id

    def step(self) -> StepOutput:
        """Advance every request by one step, and fetch what is new of those from ``submit``."""
        if self.scheduler.has_work:
            self._advance()
        led = [live for live in self._live.values() if live.led_by_caller]
        tokens = tuple(token for live in led for token in live.take_tokens())
        done = tuple(live.completion for live in led if live.completion is not None)
        for completion in done:
            del self._live[completion.request]
        return StepOutput(tokens, done)

    def cancel(self, request: int) -> None:
        """Drop a request and everything it holds; one that has ended is left alone."""
        live = self._live.pop(request, None)
        if live is not None and live.completion is None:
            self._release(live)

    def ask(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        sampling: SamplingParams = GREEDY,
        n: int = 1,
        *,
        salt: str | None = None,
    ) -> Answers:
        """Put the requests for ``n`` answers to one prompt in the queue.

        With a prefix cache they share the prompt's blocks, and it is computed once; other requests
        share them only where their ``salt`` is the same. Whoever asked
        takes their output, and cancels them in the end, whether they are done or not.

        Raises:
            RequestRejected: See ``submit``.
            KvhouseError: An ``n`` below 1.
        """
        ids = self.prompt_ids(prompt)
        answers = Answers(
            sampling.samples(n),
            lambda sample: self._submit(list(ids), max_new_tokens, sample, salt=salt),
            self.cancel,
            first_alone=self.config.prefix_cache,
        )
        if answers.waiting:
            self._answers = [*(one for one in self._answers if one.waiting), answers]
        return answers

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        sampling: SamplingParams = GREEDY,
        n: int = 1,
        *,
        salt: str | None = None,
    ) -> list[Completion]:
        """Answer all prompts, each ``n`` times; the answers to one prompt follow each other.

        Whatever interrupts it, Ctrl-C included, cancels its requests.

        Raises:
            RequestRejected: One of the prompts cannot be served; then none is.
        """
        refuse_a_single_prompt(prompts)
        mine: list[Answers] = []
        try:
            for prompt in prompts:
                # One by one, so that what was submitted is known when a later one is refused.
                mine.append(  # noqa: PERF401
                    self.ask(prompt, max_new_tokens, sampling, n, salt=salt)
                )
            while not all(answers.done for answers in mine):
                self._advance()
            return [completion for answers in mine for completion in answers.completions]
        finally:
            for answers in mine:
                answers.cancel()

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        sampling: SamplingParams = GREEDY,
        n: int = 1,
        *,
        salt: str | None = None,
    ) -> Iterator[Token]:
        """Answer one prompt token by token; ``n`` answers come side by side.

        Nothing happens before the first token is asked for. Closing the iterator, or whatever
        interrupts it, cancels the requests.

        Raises:
            RequestRejected: See ``submit``.
            KvhouseError: No token could be found for a position.
        """
        answers = self.ask(prompt, max_new_tokens, sampling, n, salt=salt)
        try:
            # Between two of its tokens others may have advanced it, even to its end.
            while (tokens := answers.take_tokens()) or not answers.done:
                yield from tokens
                if not tokens:
                    self._advance()
            answers.raise_error()
        finally:
            answers.cancel()

    def _submit(
        self,
        ids: list[int],
        max_new_tokens: int,
        sampling: SamplingParams,
        *,
        salt: str | None = None,
        led_by_caller: bool = False,
    ) -> LiveRequest:
        refuse_texts_without_tokenizer(sampling, self.tokenizer)
        request = self.scheduler.submit(len(ids), max_new_tokens, self._keys(ids, salt))
        live = LiveRequest(request, sampling, self.tokenizer, led_by_caller=led_by_caller)
        self._live[request.id] = live
        self.executor.add(request.id, ids, sampling)
        return live

    def _keys(self, tokens: list[int], salt: str | None) -> TokenKeys | None:
        """What a request's blocks hold; ``tokens`` grows as it does."""
        if not self.config.prefix_cache:
            return None
        tags = () if salt is None else (("salt", salt),)
        return TokenKeys(tokens, self.config.block_size, tags)

    def _advance(self) -> None:
        """One step for everyone. An interrupted one is as if it had not been."""
        plan = self.scheduler.schedule()
        self.held_bytes = held_bytes(self.scheduler.memory)
        result, finished = self.scheduler.carry_out(plan, self.executor)
        if self.observer is not None:
            self.observer(plan, result)
        ended = {request.id for request in finished}
        for sampled in result.sampled:
            live = self._live[sampled.request]
            self._update(live, stopped=sampled.stop, ended=sampled.request in ended)
        for request in finished:
            self.executor.drop(request.id)
        for answers in self._answers:
            answers.follow()
        self._answers = [answers for answers in self._answers if answers.waiting]
        if not self.scheduler.has_work:
            check(self.scheduler)

    def _update(self, live: LiveRequest, *, stopped: bool, ended: bool) -> None:
        """Give a request the token of a step; what fails for one ends that one alone."""
        try:
            live.update(self.executor, stopped=stopped, ended=ended)
        except Exception as error:
            live.fail(f"its text could not be made: {type(error).__name__} ({error})")
        if live.completion is not None and not ended:
            self._release(live)

    def _release(self, live: LiveRequest) -> None:
        """Free what a request holds that has not come to its end."""
        self.scheduler.cancel(live.request)
        self.executor.drop(live.id)


def held_bytes(memory: KVMemory) -> int:
    """Bytes of the pool that requests hold; blocks that are shared count once."""
    slots = memory.size.slots - memory.slots.free_blocks
    return memory.layout.pool_bytes(PoolSize(memory.total_blocks - memory.free_blocks, slots))
