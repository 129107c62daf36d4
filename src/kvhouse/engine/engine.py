"""The engine: prompts in, tokens out, on the scheduler and the pages of the core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvhouse.core.check import check
from kvhouse.core.keys import TokenKeys
from kvhouse.core.memory import make_memory
from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET, DEFAULT_WATERMARK
from kvhouse.core.scheduler import (
    DEFAULT_MAX_RUNNING,
    Scheduler,
    SchedulerConfig,
)
from kvhouse.core.tiers import LoadRule
from kvhouse.engine.executor import TorchExecutor
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.live import LiveRequest
from kvhouse.engine.load import LoadedModel, load_model
from kvhouse.engine.outputs import Completion, StepOutput, Token
from kvhouse.engine.prompt import prompt_ids
from kvhouse.engine.sampler import SamplingParams
from kvhouse.engine.tiering import open_tiers
from kvhouse.errors import KvhouseError
from kvhouse.layout import DEFAULT_BLOCK_SIZE, KVLayout
from kvhouse.replayer.tiering import Tiering
from kvhouse.spec.model import ModelSpec

Prompt = str | Sequence[int]

GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine keeps KV and forms its steps.

    Attributes:
        kv_memory: Budget for KV in bytes; the pool takes the whole blocks in it.
        kv_format: Format of keys and values in the pool.
        kv_rotation: Whether keys and values are rotated before they are rounded, which int8 and
            int4 can be; None for int4 only.
        policy: One of ``core.policy.POLICIES``, or ``contiguous``.
        block_size: Tokens in a block.
        max_length: Longest request, prompt and output, in tokens; None for the model's own.
        token_budget: Most tokens computed in one step.
        max_running: Most requests that hold memory at once.
        watermark: Share of the pool that ``paged`` admissions leave free.
        prefix_cache: Whether requests share the blocks of equal prefixes; ``paged`` only.
        tiering: What lies below the pool, in this machine's memory and in files; what a tier's
            link carries is measured where it is not given. ``paged`` only.
        tier_directory: Where the files are made; by default where the system keeps temporary
            ones.
        load_rule: Whether to load from a tier what could be computed again; by default where
            that is sooner done, going by this machine's measured arithmetic.
        checked: Check every invariant of the core after every step.
    """

    kv_memory: int
    kv_format: str = "fp32"
    kv_rotation: bool | None = None
    policy: str = "paged"
    block_size: int = DEFAULT_BLOCK_SIZE
    max_length: int | None = None
    token_budget: int = DEFAULT_TOKEN_BUDGET
    max_running: int = DEFAULT_MAX_RUNNING
    watermark: float = DEFAULT_WATERMARK
    prefix_cache: bool = False
    tiering: Tiering = field(default_factory=Tiering)
    tier_directory: Path | None = None
    load_rule: LoadRule | None = None
    checked: bool = False

    def limits(self, spec: ModelSpec) -> SchedulerConfig:
        """The scheduler's limits for a model.

        Raises:
            KvhouseError: A limit is out of range.
        """
        return SchedulerConfig(
            spec.length_limit(self.max_length),
            self.token_budget,
            self.max_running,
            checked=self.checked,
        )


class Engine:
    """Serves one model.

    Requests come in by ``generate`` (all answers at once), ``stream`` (token by token) or
    ``submit`` and ``step`` (the caller leads). The three can be mixed: whoever advances the
    engine advances everyone, and each gets the output of its own requests only.

    Raises:
        UnsupportedModel: The engine would not compute this model exactly.
        KvhouseError: A setting is out of range, or the memory is not there.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        spec = loaded.spec
        limits = config.limits(spec)
        layout = KVLayout.of(spec, config.kv_format, config.block_size)
        size = layout.pool_in(config.kv_memory, limits.max_length, limits.token_budget)
        below = open_tiers(config.tiering, spec, layout, config.tier_directory, config.load_rule)
        memory = make_memory(
            config.policy,
            layout,
            size,
            limits.max_length,
            config.watermark,
            in_flight=limits.token_budget,
            share=config.prefix_cache,
            tiers=[tier.config for tier in below.tiers],
            pays=below.pays,
        )
        self.spec = spec
        self.config = config
        self.tokenizer = loaded.tokenizer
        self.scheduler = Scheduler(memory, limits)
        self.kv = KVTensors(spec, layout, size, rotate=config.kv_rotation)
        self.executor = TorchExecutor.on(self.kv, loaded, below.stores)
        self._live: dict[int, LiveRequest] = {}

    @classmethod
    def load(cls, model: str | Path, config: EngineConfig, dtype: str = "float32") -> Engine:
        """Load a model and build its engine; see ``load_model`` for what can be loaded."""
        return cls(load_model(model, dtype), config)

    @property
    def has_work(self) -> bool:
        """Whether a request is under way, or output waits to be fetched with ``step``."""
        return bool(self._live)

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
        return self._submit(prompt, max_new_tokens, sampling, salt=salt, led_by_caller=True).id

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
            self.scheduler.cancel(live.request)
            self.executor.drop(request)

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        sampling: SamplingParams = GREEDY,
    ) -> list[Completion]:
        """Answer all prompts.

        Whatever interrupts it, Ctrl-C included, cancels its requests.

        Raises:
            RequestRejected: One of the prompts cannot be served; then none is.
        """
        if isinstance(prompts, str) or any(isinstance(prompt, int) for prompt in prompts):
            raise KvhouseError("generate takes a list of prompts: give a single one as [prompt]")
        mine: list[LiveRequest] = []
        try:
            for prompt in prompts:
                # One by one, so that what was submitted is known when a later one is refused.
                mine.append(self._submit(prompt, max_new_tokens, sampling))  # noqa: PERF401
            while any(live.completion is None for live in mine):
                self._advance()
            return [live.completion for live in mine if live.completion is not None]
        finally:
            for live in mine:
                self.cancel(live.id)

    def stream(
        self, prompt: Prompt, max_new_tokens: int, sampling: SamplingParams = GREEDY
    ) -> Iterator[Token]:
        """Answer one prompt token by token.

        Nothing happens before the first token is asked for. Closing the iterator, or whatever
        interrupts it, cancels the request.

        Raises:
            RequestRejected: See ``submit``.
            KvhouseError: The model's output was of no use.
        """
        live = self._submit(prompt, max_new_tokens, sampling)
        try:
            # Between two of its tokens others may have advanced it, even to its end.
            while (tokens := live.take_tokens()) or live.completion is None:
                yield from tokens
                if not tokens:
                    self._advance()
            if live.completion.error:
                raise KvhouseError(live.completion.error)
        finally:
            self.cancel(live.id)

    def _submit(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        sampling: SamplingParams,
        *,
        salt: str | None = None,
        led_by_caller: bool = False,
    ) -> LiveRequest:
        ids = prompt_ids(prompt, self.tokenizer, self.spec.vocab_size)
        request = self.scheduler.submit(len(ids), max_new_tokens, self._keys(ids, salt))
        live = LiveRequest(request, self.tokenizer, led_by_caller)
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
        result, finished = self.scheduler.carry_out(plan, self.executor)
        ended = {request.id for request in finished}
        for sampled in result.sampled:
            live = self._live[sampled.request]
            live.update(self.executor, stopped=sampled.stop, ended=sampled.request in ended)
        for request in finished:
            self.executor.drop(request.id)
        if not self.scheduler.has_work:
            check(self.scheduler)
