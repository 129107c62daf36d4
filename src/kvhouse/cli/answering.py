"""What the commands that run a model share: its config, its weights, an answer as it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvhouse.errors import KvhouseError
from kvhouse.units import bytes_text

if TYPE_CHECKING:
    from kvhouse.bench.row import Batch
    from kvhouse.engine import Completion, Engine, EngineConfig, SamplingParams, Token
    from kvhouse.engine.load import LoadedModel


@dataclass(slots=True)
class Usage:
    """What answers took.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        new_tokens: Tokens of all answers together.
        kv_bytes: The most bytes of the pool that were held at once.
        seconds: From the question to the last token.
        first_token_seconds: From the question to the first token; None before it.
    """

    prompt_tokens: int
    new_tokens: int = 0
    kv_bytes: int = 0
    seconds: float = 0.0
    first_token_seconds: float | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """New tokens after the first, by the time since the first."""
        if self.first_token_seconds is None or self.new_tokens < 2:
            return None
        passed = self.seconds - self.first_token_seconds
        return (self.new_tokens - 1) / passed if passed > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """The attributes and ``tokens_per_second``."""
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}

    def line(self) -> str:
        """All of it for a person."""
        parts = [
            f"{self.prompt_tokens:,} prompt + {self.new_tokens:,} new tokens",
            f"{bytes_text(self.kv_bytes)} of KV",
        ]
        if self.first_token_seconds is not None:
            parts.append(f"first token after {self.first_token_seconds:.2f} s")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s (measured)")
        return " · ".join(parts)


def require(model: str, max_new_tokens: int = 1) -> None:
    """Answer a wrong name or length before torch is imported, which takes longer.

    Raises:
        SpecError: There is no such model on this machine.
        KvhouseError: The answer may have no token.
    """
    from kvhouse import spec

    if max_new_tokens < 1:
        raise KvhouseError(f"--max-new-tokens {max_new_tokens}: give at least 1")

    if spec.hub_name(model) is None:
        spec.load(model)


def load(model: str, dtype: str) -> LoadedModel:
    """Load a model and say so: the first time a GGUF file is converted, which takes a while."""
    from rich.console import Console

    from kvhouse.engine.load import load_model

    with Console(stderr=True).status(f"loading {model}"):
        return load_model(model, dtype)


def feasible_config(
    model: str,
    config: EngineConfig,
    dtype: str,
    *,
    share: bool = False,
    batch: Batch | None = None,
    advice: str | None = None,
) -> EngineConfig:
    """Refuse what the engine cannot do, or this machine has no room for, before weights are read.

    Args:
        model: The model.
        config: What is asked for.
        dtype: What its weights are widened or narrowed to and computed in.
        share: Whether a prefix cache is wanted where it is possible.
        batch: What the pool is to hold, in place of as much as was asked for.
        advice: What helps where there is no room; by default to ask for less.

    Returns:
        The config, with all that.

    Raises:
        KvhouseError: The model is not there, or one of those is so.
    """
    from kvhouse.engine.load import describe_model, refuse_unknown_dtype
    from kvhouse.engine.room import SMALLER_POOL, require_room
    from kvhouse.layout import KVLayout

    refuse_unknown_dtype(dtype)
    described = describe_model(model)
    config.refuse_impossible(described)
    if batch is not None:
        layout = KVLayout.of(described, config.kv_format, config.block_size, dtype=dtype)
        config, advice = batch.config(config, layout), "time fewer or shorter requests"
    host = config.tiering.host_memory or 0
    require_room(described, config.kv_memory, dtype, advice or SMALLER_POOL, host)
    return config.sharing(described) if share else config


def answer(
    engine: Engine,
    prompt: list[int],
    max_new_tokens: int,
    sampling: SamplingParams,
    usage: Usage,
    show: Callable[[Token], None],
    n: int = 1,
) -> list[Completion]:
    """Have a prompt answered.

    Whatever interrupts it, Ctrl-C included, frees what it held.

    Args:
        engine: Nobody else advances it meanwhile.
        prompt: Token ids.
        max_new_tokens: Longest answer.
        sampling: How tokens are chosen.
        usage: Counts what it takes, interrupted or not.
        show: Called with each token as it comes.
        n: How many answers to give.
    """
    began = time.perf_counter()
    answers = engine.ask(prompt, max_new_tokens, sampling, n)
    try:
        while not answers.done:
            engine.step()
            usage.seconds = time.perf_counter() - began
            usage.kv_bytes = max(usage.kv_bytes, engine.held_bytes)
            for token in answers.take_tokens():
                if usage.first_token_seconds is None:
                    usage.first_token_seconds = usage.seconds
                usage.new_tokens += 1
                show(token)
        return answers.completions
    finally:
        answers.cancel()


def say(text: str) -> None:
    """Say something about an answer on stderr, so that stdout is the answer alone."""
    print(text, file=sys.stderr, flush=True)
