"""SGLang: pools of single tokens, for full attention, for windows and for states.

Source: python/sglang/srt/model_executor (``pool_configurator.py``, before 0.5.10
``model_runner.py``) and mem_cache/memory_pool.py. Its log prints GiB as "GB".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.planner.engines.kv_dtypes import SGLANG, KVType, kv_type, narrow
from kvhouse.planner.engines.option_values import flags
from kvhouse.planner.engines.sglang_options import FLAGS, SglangOptions
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.view import EngineView, Group, always, gib, held_parts
from kvhouse.planner.engines.vllm_pages import DS_MLA
from kvhouse.spec.layers import (
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    SlidingAttention,
    State,
    describe,
)
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.sharding import shard
from kvhouse.spec.tensors import ELEMENT_BYTES, Convolution

#: Windows have a pool of their own; before, they are kept in full.
_WINDOW_POOL = Version((0, 5, 0))


@dataclass(frozen=True, slots=True)
class _Cells:
    """Bytes that one token takes in the layers of one pool."""

    layers: int = 0
    key: int = 0
    value: int = 0

    @property
    def bytes(self) -> int:
        return self.key + self.value


def sglang(spec: ModelSpec, options: SglangOptions) -> EngineView:
    """How SGLang holds a model's KV on one rank.

    Raises:
        UnsupportedModel: It cannot be spread so, or has layers that the engine has no pool for.
        KvhouseError: Unknown dtype, or no length limit.
    """
    rank = shard(spec, tp=options.tp)
    length = spec.length_limit(options.context_length)
    fmt = _format(spec, options)
    parts = [part for layer in rank.layers for part in held_parts(layer)]
    windows = [part for part in parts if isinstance(part, SlidingAttention)]
    if not _window_pool(options) or len(windows) == len(parts):
        windows = []
    rest = [part for part in parts if not isinstance(part, State) and part not in windows]
    full, window = _cells(spec.name, rest, fmt), _cells(spec.name, windows, fmt)
    conv, ssm = _state_bytes(spec, parts, options)
    pool = options.pool_bytes()
    figures: dict[str, int] = {}
    if pool is not None and conv + ssm:
        states = int(pool * options.mamba_ratio / (1 + options.mamba_ratio))
        slots = states // (conv + ssm)
        figures |= {"state_slots": slots}
        pool -= states
    tokens = _tokens(options, pool, full, window)
    draft = _draft(spec, options, fmt)
    if tokens is not None:
        figures |= _pool_figures(options, tokens, full, window, draft)
    if conv + ssm:
        figures |= {"conv_state_bytes": conv, "ssm_state_bytes": ssm}
    groups = _groups(options, full, window, windows, conv + ssm, parts)
    return EngineView(
        engine="SGLang",
        version=str(Version.of(options.version)),
        groups=groups,
        max_model_len=length,
        block_size=options.page_size,
        pool_block_bytes=full.bytes * options.page_size,
        available_bytes=options.pool_bytes(),
        blocks=None if tokens is None else tokens // options.page_size,
        kv_tokens=tokens,
        max_concurrency=None,
        estimated_max_len=None if tokens is None else min(tokens, length),
        needed=lambda count: sum(group.bytes_for(count) for group in groups),
        log_lines=tuple(_log(tokens, figures, full)),
        flags=tuple(_flags(options, length, tokens)),
        notes=("its log writes GB for GiB",),
        figures=tuple(figures.items()),
    )


def _format(spec: ModelSpec, options: SglangOptions) -> KVType:
    dtype = options.dtype or narrow(spec.dtype)
    return kv_type(SGLANG, dtype if options.kv_dtype == "auto" else options.kv_dtype, "SGLang")


def _window_pool(options: SglangOptions) -> bool:
    if options.window_pool is not None:
        return options.window_pool
    return Version.of(options.version) >= _WINDOW_POOL


def _cells(name: str, parts: Sequence[Layer], fmt: KVType) -> _Cells:
    key = value = 0
    packed = fmt.bytes == 1 and any(isinstance(part, Indexer) for part in parts)
    for part in parts:
        if isinstance(part, FullAttention) and not part.across:
            key += part.kv_heads * fmt.vector_bytes(part.key_dim)
            value += part.kv_heads * fmt.vector_bytes(part.value_dim)
        elif isinstance(part, LatentAttention) and part.window is None:
            # Sparse latents in fp8 have their scales and a rotary part in 16 bits beside them.
            key += DS_MLA if packed else fmt.vector_bytes(part.rank + part.rope_dim)
        elif isinstance(part, Indexer) and part.dtype is None and not part.positions:
            key += part.keys + -(-part.keys // 128) * 4
        else:
            raise UnsupportedModel(
                f"{name}: how SGLang holds a layer of kind {describe(part)!r} is not known here"
            )
    return _Cells(len(parts), key, value)


def _state_bytes(spec: ModelSpec, parts: list[Layer], options: SglangOptions) -> tuple[int, int]:
    """Bytes of convolutions, and of other states, of one request."""
    dtype = options.dtype or narrow(spec.dtype)
    conv = other = 0
    for part in parts:
        for tensor in part.state:
            if isinstance(tensor, Convolution):
                conv += tensor.bytes(dtype)
            else:
                other += tensor.elements * ELEMENT_BYTES[options.state_dtype]
    return conv, other


def _tokens(options: SglangOptions, pool: int | None, full: _Cells, window: _Cells) -> int | None:
    """Tokens of the full pool: what the cells of both pools leave room for, in whole pages."""
    if options.tokens is not None:
        return options.tokens
    if pool is None:
        return None
    cell = full.bytes + options.swa_ratio * window.bytes if window.layers else full.bytes
    if not cell:
        raise KvhouseError("SGLang: a model without attention has no pool of tokens")
    return int(max(0, pool) // cell) // options.page_size * options.page_size


def _draft(spec: ModelSpec, options: SglangOptions, fmt: KVType) -> _Cells:
    if not options.draft_layers:
        return _Cells()
    rank = shard(replace(spec, layers=options.draft_layers, mtp_layers=()), tp=options.tp)
    return _cells(spec.name, [p for layer in rank.layers for p in held_parts(layer)], fmt)


def _pool_figures(
    options: SglangOptions, tokens: int, full: _Cells, window: _Cells, draft: _Cells
) -> dict[str, int]:
    """Bytes of the buffers, which hold a page more than they have tokens."""
    rows = tokens + options.page_size
    key, value = rows * full.key, rows * full.value
    figures = {"full_tokens": tokens, "full_k_bytes": key, "full_v_bytes": value}
    if window.layers:
        swa = int(tokens * options.swa_ratio) // options.page_size * options.page_size
        wide = swa + options.page_size
        key, value = key + wide * window.key, value + wide * window.value
        figures |= {
            "swa_tokens": swa,
            "swa_k_bytes": wide * window.key,
            "swa_v_bytes": wide * window.value,
        }
    figures |= {"k_bytes": key, "v_bytes": value, "kv_bytes": key + value}
    if draft.layers:
        figures |= {"draft_k_bytes": rows * draft.key, "draft_v_bytes": rows * draft.value}
    return figures


def _groups(
    options: SglangOptions,
    full: _Cells,
    window: _Cells,
    windows: list[SlidingAttention],
    state: int,
    parts: list[Layer],
) -> tuple[Group, ...]:
    page = options.page_size

    def pages(tokens: int) -> int:
        return -(-tokens // page)

    groups = []
    if full.layers:
        text = f"{page} · {full.bytes:,}"
        size = page * full.bytes
        count = f"ceil(n / {page})"
        groups.append(Group("tokens", full.layers, 0, page, size, pages, text, count))
    if window.layers:
        reach = max(part.window for part in windows)
        text, size = f"{page} · {window.bytes:,}", page * window.bytes
        count = f"ceil(min(n, {reach}) / {page})"

        def kept(tokens: int) -> int:
            return pages(min(tokens, reach))

        groups.append(Group("sliding window", window.layers, 0, page, size, kept, text, count))
    if state:
        layers = sum(isinstance(part, State) for part in parts)
        text = f"{state:,} in all layers"
        groups.append(Group("state", layers, 0, 1, state, always(1), text, "1 per request"))
    return tuple(groups)


def _flags(options: SglangOptions, length: int, tokens: int | None) -> list[str]:
    """Options that start the engine so; a pool that was not stated in its terms, in tokens."""
    found = [f"--context-length {length}", *flags(options, FLAGS)]
    if tokens and options.tokens is None and options.mem_fraction_static is None:
        found.append(f"--max-total-tokens {tokens}")
    return found


def _log(tokens: int | None, figures: dict[str, int], full: _Cells) -> list[str]:
    if tokens is None:
        return []
    if not full.value:
        return [f"KV Cache is allocated. #tokens: {tokens}, KV size: {gib(figures['k_bytes'])} GB"]
    lines = [
        f"KV Cache is allocated. #tokens: {tokens}, K size: {gib(figures['full_k_bytes'])} GB, "
        f"V size: {gib(figures['full_v_bytes'])} GB"
    ]
    if "swa_tokens" in figures:
        lines.append(
            f"SWAKVPool mem usage: {gib(figures['kv_bytes'])} GB, swa size: "
            f"{figures['swa_tokens']}, full size: {tokens}"
        )
    return lines
