"""Why the cache is there: a token's time with and without it, against the length so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from kvhouse import spec
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.views.cache import Point

if TYPE_CHECKING:
    from kvhouse.engine.load import LoadedModel


Result = TypeVar("Result")

#: Logits that differ by less count as equal.
_TIE = 1e-2


@dataclass(frozen=True, slots=True)
class CacheSetting:
    """What is measured.

    Attributes:
        model: A small model whose weights come as a package.
        lengths: Tokens that are known when the next one is asked for.
        repeats: Tokens generated at each length; the median of their times counts.
        dtype: Weights and arithmetic.
        kv_format: Keys and values.
    """

    model: str = "smollm2"
    lengths: tuple[int, ...] = (32, 128, 256, 512, 1024)
    repeats: int = 7
    dtype: str = "float32"
    kv_format: str = "fp32"


@dataclass(frozen=True, slots=True)
class CacheOutcome:
    """The demo's setting and what it measured."""

    setting: CacheSetting
    device: str
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; docs/json.md describes the keys."""
        return asdict(self)


class CacheDemo:
    """Measures one length after the other.

    Args:
        setting: What is measured.
        loaded: The model.
        device: This machine.
    """

    def __init__(self, setting: CacheSetting, loaded: LoadedModel, device: Device) -> None:
        from kvhouse.engine import Engine, EngineConfig
        from kvhouse.engine.uncached import UncachedAdapter

        self._setting = setting
        layout = KVLayout.of(loaded.spec, setting.kv_format)
        longest = max(setting.lengths) + setting.repeats + 1
        memory = layout.blocks_for(longest) * layout.block_bytes
        config = EngineConfig(
            memory,
            setting.kv_format,
            max_length=longest,
            token_budget=longest,
            watermark=0.0,
        )
        self._vocab_size = loaded.spec.vocab_size
        self._engine = Engine(loaded, config)
        self._uncached = UncachedAdapter(loaded.model)
        self._roofline = Roofline(loaded.spec, layout, device, setting.dtype)

    def measure(self, length: int) -> Point:
        """Generate from a prompt of ``length`` tokens, both ways.

        Raises:
            KvhouseError: The two ways differ in a token: a bug in kvhouse.
        """
        from kvhouse.engine import SamplingParams

        prompt = [number % self._vocab_size for number in range(7, 7 + 13 * length, 13)]
        repeats = self._setting.repeats
        stream = self._engine.stream(prompt, repeats + 1, SamplingParams(ignore_eos=True))
        prefill, first = _timed(lambda: next(stream).id)
        decode = [_timed(lambda: next(stream).id) for _ in range(repeats)]
        known, uncached = [*prompt], list[float]()
        for token in [first, *(token for _, token in decode)][:2]:
            seconds, logits = _timed(lambda: self._uncached.logits(known))
            # Two tokens may be as likely as each other but for rounding.
            if logits[token] < logits.max() - _TIE:
                raise KvhouseError(
                    f"after {len(known):,} tokens the model says {int(logits.argmax())} without a "
                    f"cache and {token} with it"
                )
            uncached.append(seconds)
            known.append(token)
        return Point(
            length,
            median(uncached),
            median(seconds for seconds, _ in decode),
            self._roofline.decode_floor(1, length).seconds,
            prefill,
            self._roofline.prefill(length).seconds,
        )


def load(setting: CacheSetting) -> LoadedModel:
    """The setting's model."""
    from kvhouse.engine.load import load_model

    spec.load(setting.model)
    return load_model(setting.model, setting.dtype)


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result
