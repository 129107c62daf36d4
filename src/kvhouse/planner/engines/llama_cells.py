"""llama.cpp: how many cells its caches have, and the bytes of each cell.

Sources: src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp and llama-memory-recurrent.cpp. Versions
are months, such as ``2025.5``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.planner.engines.kv_dtypes import LLAMA_CPP, kv_type
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.view import held_parts
from kvhouse.spec.layers import (
    ChunkedAttention,
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
from kvhouse.spec.tensors import Convolution

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
class Buffer:
    """Cells of some layers, with the bytes of one cell in all of them."""

    layers: int
    cells: int
    key: int
    value: int

    @property
    def k_bytes(self) -> int:
        """Bytes of all keys."""
        return self.cells * self.key

    @property
    def v_bytes(self) -> int:
        """Bytes of all values."""
        return self.cells * self.value

    @property
    def bytes(self) -> int:
        """Bytes of both."""
        return self.k_bytes + self.v_bytes


@dataclass(frozen=True, slots=True)
class Cells:
    """All that a context allocates.

    Attributes:
        asked: Tokens of context that were asked for.
        streams: Buffers side by side, one for all sequences or one for each.
        per_stream: Cells of one buffer, as many as a sequence can have tokens.
        base: The layers that keep the whole context, over all streams.
        windows: The layers that keep a window, over all streams.
        states: Layers with recurrent states.
        r_bytes: Inputs of convolutions, of all sequences.
        s_bytes: Other states, of all sequences.
        compressed: Whether the model has compressed entries, whose caches are not counted here.
    """

    asked: int
    streams: int
    per_stream: int
    base: Buffer
    windows: Buffer
    states: int
    r_bytes: int
    s_bytes: int
    compressed: bool

    @property
    def bytes(self) -> int:
        """Bytes of everything."""
        return self.base.bytes + self.windows.bytes + self.r_bytes + self.s_bytes


#: Kinds of DeepSeek-V4 that lie in caches of their own, which are not counted here.
_COMPRESSED = (CompressedEntries, PendingTokens, PreviousGroup)


def allocate(spec: ModelSpec, options: LlamaCppOptions) -> Cells:
    """The buffers for a model and a context.

    Raises:
        UnsupportedModel: A layer is of a kind that its caches are not known for.
        KvhouseError: Unknown type, or no length.
    """
    asked = spec.length_limit(None) if options.n_ctx is None else options.n_ctx
    release = Version.of(options.version)
    parts = [part for layer in spec.layers for part in held_parts(layer)]
    kept = [part for part in parts if not isinstance(part, _COMPRESSED)]
    states = [part for part in kept if isinstance(part, State)]
    attention = [part for part in kept if not isinstance(part, State)]
    local = [part for part in attention if _reach(part) and release >= _WINDOW_CACHE]
    wide = [part for part in attention if not (_reach(part) and release >= _WINDOW_CACHE)]
    streams, per_stream = _streams(options, release, asked)
    reach = max(map(_reach, local), default=0)
    window = _window_cells(options, reach, per_stream, streams)
    r_bytes, s_bytes = _recurrent(states, options.n_seq_max)
    return Cells(
        asked=asked,
        streams=streams,
        per_stream=per_stream,
        base=_buffer(spec.name, wide, options, streams * per_stream),
        windows=_buffer(spec.name, local, _of_windows(options, release), streams * window),
        states=len(states),
        r_bytes=r_bytes,
        s_bytes=s_bytes,
        compressed=len(kept) < len(parts),
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


def _buffer(name: str, parts: list[Layer], options: LlamaCppOptions, cells: int) -> Buffer:
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
    return Buffer(len(parts), cells, key, value)


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
