"""llama.cpp: a buffer of cells for all layers, one for windows, and states per sequence.

Sources: src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp and llama-memory-recurrent.cpp. Its log
prints MiB. Versions are months, such as ``2025.5``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.planner.engines.kv_dtypes import LLAMA_CPP, kv_type
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.view import EngineView, Group, always, held_parts, mib
from kvhouse.spec.layers import (
    ChunkedAttention,
    Convolution,
    FullAttention,
    LatentAttention,
    Layer,
    SlidingAttention,
    State,
    describe,
)
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.rare_layers import (
    CompressedEntries,
    PendingTokens,
    PreviousGroup,
    SharedVector,
)

#: Windows have a cache of their own (PR 13194).
_WINDOW_CACHE = Version((2025, 5, 0))
#: Sequences have streams of their own unless the cache is unified (PR 14363).
_STREAMS = Version((2025, 7, 0))
#: Windows are not quantised with the rest of the cache (PR 21277).
_PLAIN_WINDOWS = Version((2026, 4, 0))
#: The context is always padded to 256 cells; before, to 32 without flash attention.
_WIDE_PADDING = Version((2025, 11, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOptions:
    """llama.cpp's own options.

    Attributes:
        version: Month of the build, such as ``2025.5``; None is the latest that is known.
        n_ctx: ``--ctx-size``; by default the model's limit.
        n_seq_max: ``--parallel``.
        n_ubatch: ``--ubatch-size``.
        unified: ``--kv-unified``: one buffer for all sequences.
        swa_full: ``--swa-full``: windows keep the whole context.
        flash_attn: ``--flash-attn``, which older builds pad more for.
        type_k: ``--cache-type-k``.
        type_v: ``--cache-type-v``.
        type_swa: Type of the cache of windows; by default that of the rest, from April 2026 on f16
            where that is quantised.
        latent_values: Whether MLA keeps its latents as V as well, as builds of 2025 do.
    """

    version: str | None = None
    n_ctx: int | None = None
    n_seq_max: int = 1
    n_ubatch: int = 512
    unified: bool = False
    swa_full: bool = False
    flash_attn: bool = False
    type_k: str = "f16"
    type_v: str = "f16"
    type_swa: str | None = None
    latent_values: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes below 1.

        Raises:
            KvhouseError: A size is out of range.
        """
        for name in ("n_ctx", "n_seq_max", "n_ubatch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise KvhouseError(f"{name} {value}: at least 1")


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Cells of some layers, with the bytes of one cell in all of them."""

    layers: int
    cells: int
    key: int
    value: int

    @property
    def k_bytes(self) -> int:
        return self.cells * self.key

    @property
    def v_bytes(self) -> int:
        return self.cells * self.value

    @property
    def bytes(self) -> int:
        return self.k_bytes + self.v_bytes


#: Kinds of DeepSeek-V4 that lie in caches of their own, which are not counted here.
_COMPRESSED = (CompressedEntries, PendingTokens, PreviousGroup)


def llama_cpp(spec: ModelSpec, options: LlamaCppOptions) -> EngineView:
    """What llama.cpp allocates for a model when a context is made; nothing grows afterwards.

    Raises:
        UnsupportedModel: A layer is of a kind that its caches are not known for.
        KvhouseError: Unknown type, or no length.
    """
    asked = spec.length_limit(None) if options.n_ctx is None else options.n_ctx
    release = Version.of(options.version)
    parts = [part for layer in spec.layers for part in held_parts(layer)]
    compressed = any(isinstance(part, _COMPRESSED) for part in parts)
    parts = [part for part in parts if not isinstance(part, _COMPRESSED)]
    local = {number: _reach(part) for number, part in enumerate(parts) if _reach(part)}
    if release < _WINDOW_CACHE:
        local = {}
    states = [part for part in parts if isinstance(part, State)]
    wide = [
        part
        for number, part in enumerate(parts)
        if number not in local and not isinstance(part, State)
    ]
    streams, per_stream = _streams(options, release, asked)
    base = _buffer(spec.name, wide, options, streams * per_stream)
    reach = max(local.values(), default=0)
    narrow = _buffer(
        spec.name,
        [parts[number] for number in local],
        _of_windows(options, release),
        streams * _window_cells(options, reach, per_stream, streams),
    )
    r_bytes, s_bytes = _recurrent(states, options.n_seq_max)
    groups = _groups(base, narrow, r_bytes + s_bytes, len(states), options.n_seq_max)
    whole = base.bytes + narrow.bytes + r_bytes + s_bytes
    figures = {
        "n_ctx": streams * per_stream,
        "k_bytes": base.k_bytes + narrow.k_bytes,
        "v_bytes": base.v_bytes + narrow.v_bytes,
        "kv_bytes": base.bytes + narrow.bytes,
        "non_swa_cells": per_stream,
        "non_swa_layers": base.layers,
        **_buffer_figures("non_swa_", base),
    }
    if local:
        cells = narrow.cells // streams
        figures |= {"swa_cells": cells, "swa_layers": narrow.layers}
        figures |= _buffer_figures("swa_", narrow)
    if states:
        figures |= {"r_bytes": r_bytes, "s_bytes": s_bytes, "recurrent_bytes": r_bytes + s_bytes}
        figures |= {"state_cells": options.n_seq_max, "layers": len(spec.layers)}
    return EngineView(
        engine="llama.cpp",
        version=str(release),
        groups=groups,
        max_model_len=per_stream,
        block_size=1,
        pool_block_bytes=0,
        available_bytes=None,
        blocks=None,
        kv_tokens=streams * per_stream,
        max_concurrency=None,
        estimated_max_len=per_stream,
        needed=lambda _: whole,
        log_lines=tuple(_log(base, narrow, options, r_bytes, s_bytes, len(spec.layers))),
        flags=(f"--ctx-size {asked}", f"--parallel {options.n_seq_max}"),
        notes=(
            "all of it is allocated at the start; a shorter request leaves the rest idle",
            *(["compressed entries lie in caches of their own, not counted"] if compressed else []),
        ),
        figures=tuple(figures.items()),
    )


def _of_windows(options: LlamaCppOptions, release: Version) -> LlamaCppOptions:
    """The options with the types of the cache of windows."""
    if options.type_swa is not None:
        return replace(options, type_k=options.type_swa, type_v=options.type_swa)
    if release < _PLAIN_WINDOWS:
        return options
    types = (options.type_k, options.type_v)
    plain = ["f16" if kv_type(LLAMA_CPP, t, "llama.cpp").elements > 1 else t for t in types]
    return replace(options, type_k=plain[0], type_v=plain[1])


def _buffer_figures(name: str, buffer: _Buffer) -> dict[str, int]:
    return {
        f"{name}k_bytes": buffer.k_bytes,
        f"{name}v_bytes": buffer.v_bytes,
        f"{name}kv_bytes": buffer.bytes,
    }


def padded(count: int, step: int) -> int:
    """``count`` rounded up to a multiple of ``step``."""
    return -(-count // step) * step


def _reach(part: Layer) -> int:
    """The window of a layer; 0 where it has none."""
    if isinstance(part, SlidingAttention | SharedVector):
        return part.window
    return part.chunk if isinstance(part, ChunkedAttention) else 0


def _streams(options: LlamaCppOptions, release: Version, asked: int) -> tuple[int, int]:
    """Buffers side by side, and cells of one."""
    step = 256 if release >= _WIDE_PADDING or options.flash_attn else 32
    if options.unified or release < _STREAMS or options.n_seq_max == 1:
        return 1, padded(asked, step)
    return options.n_seq_max, padded(asked // options.n_seq_max, 256)


def _window_cells(options: LlamaCppOptions, reach: int, cells: int, streams: int) -> int:
    """Cells of one buffer for windows: those of the window and of the batch under way."""
    if options.swa_full:
        return cells
    sequences = options.n_seq_max if streams == 1 else 1
    return padded(min(cells, reach * sequences + options.n_ubatch), 256)


def _buffer(name: str, parts: list[Layer], options: LlamaCppOptions, cells: int) -> _Buffer:
    type_k = kv_type(LLAMA_CPP, options.type_k, "llama.cpp")
    type_v = kv_type(LLAMA_CPP, options.type_v, "llama.cpp")
    key = value = 0
    for part in parts:
        if isinstance(part, LatentAttention) and part.window is None:
            key += type_k.vector_bytes(part.rank + part.rope_dim)
            value += type_v.vector_bytes(part.rank) if options.latent_values else 0
        elif isinstance(part, SharedVector):
            key += type_k.vector_bytes(part.dim)
        elif isinstance(part, FullAttention) and not part.across:
            key += type_k.vector_bytes(part.kv_heads * part.key_dim)
            value += type_v.vector_bytes(part.kv_heads * part.value_dim)
        else:
            raise UnsupportedModel(
                f"{name}: how llama.cpp holds a layer of kind {describe(part)!r} is not known here"
            )
    return _Buffer(len(parts), cells, key, value)


def _recurrent(states: list[State], sequences: int) -> tuple[int, int]:
    """Bytes of R, the inputs of convolutions, and of S, other states: float32, per sequence."""
    r_bytes = s_bytes = 0
    for part in states:
        for tensor in part.tensors:
            if isinstance(tensor, Convolution):
                r_bytes += tensor.channels * (tensor.kernel - 1) * 4
            else:
                s_bytes += tensor.elements * 4
    return r_bytes * sequences, s_bytes * sequences


def _groups(
    base: _Buffer, narrow: _Buffer, state: int, layers: int, sequences: int
) -> tuple[Group, ...]:
    groups = []
    for name, buffer in (("cells", base), ("cells of windows", narrow)):
        if buffer.layers:
            groups.append(
                Group(
                    name=name,
                    layers=buffer.layers,
                    padding=0,
                    block_size=1,
                    block_bytes=buffer.key + buffer.value,
                    blocks=always(buffer.cells),
                    formula=f"K {buffer.key:,} + V {buffer.value:,}",
                    count=f"{buffer.cells:,} cells from the start",
                )
            )
    if state:
        each = state // sequences
        count = f"{sequences} from the start"
        text = f"{each:,} in all layers"
        groups.append(Group("state", layers, 0, 1, each, always(sequences), text, count))
    return tuple(groups)


def _log(
    base: _Buffer,
    narrow: _Buffer,
    options: LlamaCppOptions,
    r_bytes: int,
    s_bytes: int,
    layers: int,
) -> list[str]:
    lines = [
        f"size = {mib(buffer.bytes)} MiB ({buffer.cells} cells, {buffer.layers} layers), "
        f"K ({options.type_k}): {mib(buffer.k_bytes)} MiB, "
        f"V ({options.type_v}): {mib(buffer.v_bytes)} MiB"
        for buffer in (base, narrow)
        if buffer.layers
    ]
    if r_bytes + s_bytes:
        lines.append(
            f"size = {mib(r_bytes + s_bytes)} MiB ({options.n_seq_max} cells, {layers} layers, "
            f"{options.n_seq_max} seqs), R (f32): {mib(r_bytes)} MiB, S (f32): {mib(s_bytes)} MiB"
        )
    return lines
