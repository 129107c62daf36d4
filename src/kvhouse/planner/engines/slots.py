"""Engines that allocate every slot at the start: static caches, and what calculators assume.

Sources: transformers, ``StaticCache``; candle's ``KvCache`` with a preallocated buffer; the
examples of early ggml; and an application's estimate that counts every layer as full attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvhouse.errors import UnsupportedModel
from kvhouse.planner.engines.kv_dtypes import PLAIN, kv_type, narrow
from kvhouse.planner.engines.view import EngineView, Group, always, held_parts, mib
from kvhouse.spec.layers import FullAttention, Layer, State, describe
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.rare_layers import SharedVector


@dataclass(frozen=True, slots=True)
class Slots:
    """How one engine lays out its slots.

    Attributes:
        name: The engine's name.
        dtype: What it stores by default; empty for the model's dtype.
        windows: Whether layers with windows have no more slots than their window, and others what
            transformers' models give their cache.
        all_heads: Whether every query head has a key and a value, as if there were no GQA.
        all_layers: Whether every layer is counted as the first one with attention.
    """

    name: str
    dtype: str = ""
    windows: bool = False
    all_heads: bool = False
    all_layers: bool = False


SLOTS = {
    "transformers-static": Slots("transformers, static cache", windows=True),
    "candle": Slots("candle"),
    "ggml": Slots("ggml examples", "float32", all_heads=True),
    "ggml-falcon": Slots("ggml's falcon example", "float32"),
    "jan": Slots("jan's estimate", "float16", all_layers=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOptions:
    """Attributes: the length that is allocated, sequences, and the dtype of what is stored."""

    max_model_len: int | None = None
    batch: int = 1
    dtype: str | None = None


def slot_cache(slots: Slots, spec: ModelSpec, options: SlotOptions) -> EngineView:
    """What an engine allocates for ``batch`` sequences of full length.

    Raises:
        UnsupportedModel: A layer keeps something else than keys and values.
        KvhouseError: Unknown dtype, or no length limit.
    """
    length = spec.length_limit(options.max_model_len)
    fmt = kv_type(PLAIN, options.dtype or slots.dtype or narrow(spec.dtype), slots.name)
    parts = _parts(slots, spec)
    kept: dict[tuple[str, int], list[int]] = {}
    for part in parts:
        cells = part.kept_tokens(length) if slots.windows else length
        size = sum(count * fmt.vector_bytes(elements) for count, elements in part.vectors)
        kept.setdefault((part.kind, cells * options.batch), []).append(size)
    groups = tuple(
        Group(
            kind,
            len(sizes),
            0,
            1,
            sum(sizes),
            always(cells),
            f"{sum(sizes):,} in all layers",
            f"{cells:,} slots from the start",
        )
        for (kind, cells), sizes in kept.items()
    )
    whole = sum(group.bytes_for(length) for group in groups)
    return EngineView(
        engine=slots.name,
        version="any",
        groups=groups,
        max_model_len=length,
        block_size=1,
        pool_block_bytes=0,
        available_bytes=None,
        blocks=None,
        kv_tokens=length * options.batch,
        max_concurrency=None,
        estimated_max_len=length,
        needed=always(whole),
        log_lines=(f"KV cache: {mib(whole)} MiB",),
        notes=("all of it is allocated at the start",),
        figures=(("kv_bytes", whole), ("slots", length * len(parts))),
    )


def _parts(slots: Slots, spec: ModelSpec) -> list[Layer]:
    parts = [part for layer in spec.layers for part in held_parts(layer)]
    if slots.windows:
        parts = [part for layer in spec.layers if held_parts(layer) for part in stored(spec, layer)]
    if slots.all_layers:
        first = next((part for part in parts if isinstance(part, FullAttention)), None)
        if first is None:
            raise UnsupportedModel(f"{spec.name}: has no attention that {slots.name} would count")
        return [first] * len(spec.layers)
    for part in parts:
        if isinstance(part, State) or part.fixed or part.across:
            raise UnsupportedModel(
                f"{spec.name}: how {slots.name} holds a layer of kind {describe(part)!r} is not "
                "known here"
            )
    if slots.all_heads:
        return [
            replace(part, kv_heads=part.query_heads) if isinstance(part, FullAttention) else part
            for part in parts
        ]
    return parts


def stored(spec: ModelSpec, layer: Layer) -> tuple[Layer, ...]:
    """The layer's parts as transformers stores them, in any of its caches."""
    if isinstance(layer, SharedVector):  # as keys and as values; beside compressed entries, once
        return (layer, layer)
    falcon = spec.architecture == "FalconForCausalLM"
    if falcon and isinstance(layer, FullAttention) and layer.kv_heads > 1:
        # Falcon's newer form stores its keys after repeating them for every query head.
        return (replace(layer, kv_heads=layer.query_heads),)
    return layer.parts
