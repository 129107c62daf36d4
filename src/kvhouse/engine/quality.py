"""What a KV format costs in accuracy, measured on a text against keys and values in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any

import torch

from kvhouse.core.step import Row, StepPlan
from kvhouse.engine.adapter import ModelAdapter
from kvhouse.engine.kernels.choose import make_kernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.load import LoadedModel
from kvhouse.engine.packed import pack
from kvhouse.errors import KvhouseError
from kvhouse.formats import get_format
from kvhouse.layout import DEFAULT_BLOCK_SIZE, KVLayout, PoolSize
from kvhouse.spec.model import ModelSpec

#: The text that ships with kvhouse: ``kvhouse/data/texts/README.md`` has its source and licence.
TEXT = "news-from-nowhere"

#: Tokens computed in one forward pass; bounds the memory that their logits take.
_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to store keys and values: a format, and whether they are rotated before rounding."""

    kv_format: str
    rotated: bool = False

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.kv_format}, rotated" if self.rotated else self.kv_format


#: What is measured when nothing is chosen, widest first.
VARIANTS = (
    Variant("bf16"),
    Variant("fp16"),
    Variant("fp8"),
    Variant("int8"),
    Variant("int8", rotated=True),
    Variant("int4"),
    Variant("int4", rotated=True),
)

#: What the others are compared with.
_BASE = Variant("fp32")


@dataclass(frozen=True, slots=True)
class Quality:
    """What a variant costs, over all predicted tokens of the text.

    Attributes:
        variant: How keys and values were stored.
        kernel: What computed attention, for people; the same that serves a pool of this format.
        bytes_per_token: Bytes that a token takes in all layers, scales included.
        perplexity: The exponential of the mean negative log likelihood of the text's tokens.
        perplexity_change: That over the perplexity with float32, less 1.
        kl_mean: Kullback-Leibler divergence of the predictions from those with float32, in nats.
        kl_p99: Its 99th percentile.
        top1_agreement: Share of the predictions whose most likely token is the same.
    """

    variant: Variant
    kernel: str
    bytes_per_token: int
    perplexity: float
    perplexity_change: float
    kl_mean: float
    kl_p99: float
    top1_agreement: float


@dataclass(frozen=True, slots=True)
class QualityReport:
    """The measurement: float32 first, then each variant.

    Attributes:
        model: The model's name.
        text: What it read.
        tokens: Predicted tokens.
        window: Tokens that one pass saw; each began with an empty cache.
        results: Each variant's figures.
    """

    model: str
    text: str
    tokens: int
    window: int
    results: tuple[Quality, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def variants_of(names: Sequence[str], rotation: bool | None = None) -> tuple[Variant, ...]:
    """The variants of formats, each rotated or not as asked; None for both where both can be.

    No formats stand for all of ``VARIANTS`` that are as asked.

    Raises:
        KvhouseError: No such format, or a format that cannot be rotated is asked to be.
    """
    if not names:
        return tuple(v for v in VARIANTS if rotation is None or v.rotated == rotation)
    chosen: list[Variant] = []
    for name in names:
        known = [variant for variant in (*VARIANTS, Variant("fp32")) if variant.kv_format == name]
        get_format(name)
        asked = [v for v in known if rotation is None or v.rotated == rotation]
        if not asked:
            raise KvhouseError(f"KV format {name} cannot be rotated: leave the rotation out")
        chosen += asked
    return tuple(chosen)


def bundled_text() -> str:
    """The text that ships with kvhouse."""
    return (files("kvhouse") / "data" / "texts" / f"{TEXT}.txt").read_text(encoding="utf-8")


def text_ids(loaded: LoadedModel, text: str) -> list[int]:
    """A text as the model's tokens.

    Raises:
        KvhouseError: The model has no tokenizer.
    """
    if loaded.tokenizer is None:
        raise KvhouseError(f"{loaded.spec.name}: has no tokenizer, so it cannot read a text")
    ids: list[int] = loaded.tokenizer(text)["input_ids"]
    return ids


def measure_quality(
    loaded: LoadedModel,
    token_ids: Sequence[int],
    variants: Sequence[Variant] = VARIANTS,
    *,
    text: str = TEXT,
    window: int = 1024,
    on_pass: Callable[[], None] | None = None,
) -> QualityReport:
    """Read a text once for each variant and compare every prediction with float32's.

    The text is cut into windows, and each is computed in chunks, as a long prompt is: every
    token attends to what was stored of those before it, and to itself as stored.

    Args:
        loaded: The model.
        token_ids: The text.
        variants: What to compare.
        text: Its name, for the report.
        window: Tokens of a window; what is left over at the text's end is not read.
        on_pass: Called after each pass over a window, ``windows * (1 + variants)`` times.

    Raises:
        KvhouseError: The text is shorter than a window, or the window longer than the model's
            context.
    """
    windows = list(_windows(token_ids, window, loaded.spec.max_length))
    base = _Pool(loaded, _BASE, window)
    pools = [_Pool(loaded, variant, window) for variant in variants]
    scores = [_Scores() for _ in [base, *pools]]
    for ids in windows:
        wanted = base.predict(ids)
        scores[0].add(wanted, wanted, ids)
        if on_pass:
            on_pass()
        for pool, score in zip(pools, scores[1:], strict=True):
            score.add(pool.predict(ids), wanted, ids)
            if on_pass:
                on_pass()
    perplexity = scores[0].perplexity
    results = tuple(
        score.quality(pool, perplexity) for pool, score in zip([base, *pools], scores, strict=True)
    )
    return QualityReport(loaded.spec.name, text, len(windows) * (window - 1), window, results)


def kv_bytes(spec: ModelSpec, variants: Sequence[Variant], window: int, dtype: str) -> int:
    """Bytes of all pools that ``measure_quality`` holds at once.

    Args:
        spec: The model.
        variants: What is compared.
        window: Tokens of a window.
        dtype: What the model computes in.
    """
    layouts = [_layout(spec, variant, dtype) for variant in (_BASE, *variants)]
    return sum(layout.pool_bytes(_size(layout, window)) for layout in layouts)


def _layout(spec: ModelSpec, variant: Variant, dtype: str) -> KVLayout:
    return KVLayout.of(spec, variant.kv_format, DEFAULT_BLOCK_SIZE, dtype=dtype)


def _size(layout: KVLayout, window: int) -> PoolSize:
    """A pool for one window, and one slot."""
    return PoolSize(sum(group.end_block(window) for group in layout.groups), 1)


def _windows(token_ids: Sequence[int], window: int, longest: int) -> Iterator[list[int]]:
    if not 2 <= window <= longest:
        raise KvhouseError(f"a window of {window} tokens: give 2 to {longest:,}")
    if len(token_ids) < window:
        raise KvhouseError(
            f"the text has {len(token_ids):,} tokens and a window takes {window:,}: give a longer "
            "text or a smaller window"
        )
    for start in range(0, len(token_ids) - window + 1, window):
        yield list(token_ids[start : start + window])


class _Pool:
    """A pool for one window, in one variant."""

    def __init__(self, loaded: LoadedModel, variant: Variant, window: int) -> None:
        self.variant = variant
        self.layout = _layout(loaded.spec, variant, loaded.dtype)
        tables, first = [], 0
        for group in self.layout.groups:
            count = group.end_block(window)
            tables.append(tuple(range(first, first + count)))
            first += count
        self._tables = tuple(tables)
        size = _size(self.layout, window)
        kv = KVTensors(loaded.spec, self.layout, size, rotate=variant.rotated)
        self.kernel = make_kernel(kv)
        self._adapter = ModelAdapter(loaded.model, self.kernel, loaded.spec)

    def predict(self, ids: list[int]) -> torch.Tensor:
        """Log probabilities of what follows each token but the last: ``[window - 1, vocab]``."""
        logits = []
        for first in range(0, len(ids), _CHUNK):
            count = min(_CHUNK, len(ids) - first)
            starts = (0,) * len(self._tables)
            row = Row(0, first, count, True, self._tables, starts, slot=0)
            step = pack(StepPlan(0, (row,), (), (), ()), {0: ids})
            every = replace(step, last=torch.arange(count))
            logits.append(self._adapter.forward(every).float())
        return torch.cat(logits)[:-1].log_softmax(-1)


class _Scores:
    """What is added up over the windows."""

    def __init__(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._divergences: list[torch.Tensor] = []
        self._agreements: list[torch.Tensor] = []

    def add(self, got: torch.Tensor, wanted: torch.Tensor, ids: list[int]) -> None:
        """Compare log probabilities ``[window - 1, vocab]`` with those wanted, and the text."""
        following = torch.tensor(ids[1:])[:, None]
        self._losses.append(-got.gather(1, following)[:, 0].double())
        self._divergences.append((wanted.exp() * (wanted - got)).sum(-1).double())
        self._agreements.append(got.argmax(-1) == wanted.argmax(-1))

    @property
    def perplexity(self) -> float:
        """Over all tokens."""
        return float(torch.cat(self._losses).mean().exp())

    def quality(self, pool: _Pool, base: float) -> Quality:
        """The figures, against float32's perplexity."""
        divergences = torch.cat(self._divergences)
        return Quality(
            pool.variant,
            pool.kernel.about,
            pool.layout.bytes_per_token,
            self.perplexity,
            self.perplexity / base - 1,
            float(divergences.mean()),
            float(divergences.quantile(0.99)),
            float(torch.cat(self._agreements).double().mean()),
        )
