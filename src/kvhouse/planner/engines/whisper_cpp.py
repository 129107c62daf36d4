"""whisper.cpp: the caches of a decoder's own tokens, of the encoder's output, and of padding.

Source: ``whisper_init_state`` in src/whisper.cpp. Versions are months, such as ``2024.6``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.errors import KvhouseError
from kvhouse.planner.engines.kv_dtypes import LLAMA_CPP, kv_type
from kvhouse.planner.engines.llama_cells import padded
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.view import EngineView, Group, always

#: Room for three decoders from the start; before and later, for one, and more when needed.
_THREE_DECODERS = (Version((2023, 11, 0)), Version((2024, 10, 0)))
#: Both caches are padded to 256 cells, and the log counts in decimal megabytes.
_PADDED = Version((2024, 10, 0))
_DECIMAL = Version((2023, 11, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperShape:
    """The sizes that whisper.cpp prints when it loads a model.

    Attributes:
        n_text_layer: Layers of the decoder.
        n_text_state: Width of the decoder.
        n_text_ctx: Tokens of the decoder's context.
        n_audio_ctx: Frames that the encoder gives.
        n_audio_state: Width of the encoder, by default that of the decoder.
    """

    n_text_layer: int
    n_text_state: int
    n_text_ctx: int = 448
    n_audio_ctx: int = 1500
    n_audio_state: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperOptions:
    """Attributes: the build's month, decoders, padding and the type of both caches.

    ``decoders`` and ``padding`` None stand for what the version does.
    """

    version: str | None = None
    decoders: int | None = None
    padding: bool | None = None
    cache_type: str = "f16"


def whisper_cpp(shape: WhisperShape, options: WhisperOptions) -> EngineView:
    """What whisper.cpp allocates for one state.

    Raises:
        KvhouseError: A size below 1 or an unknown type.
    """
    release = Version.of(options.version)
    fmt = kv_type(LLAMA_CPP, options.cache_type, "whisper.cpp")
    if min(shape.n_text_layer, shape.n_text_state, shape.n_text_ctx, shape.n_audio_ctx) < 1:
        raise KvhouseError("whisper.cpp: layers, widths and contexts are at least 1")
    three = _THREE_DECODERS[0] <= release < _THREE_DECODERS[1]
    decoders = options.decoders or (3 if three else 1)
    pads = release >= _PADDED if options.padding is None else options.padding
    step = 256 if pads else 1
    own, frames = padded(shape.n_text_ctx, step), padded(shape.n_audio_ctx, step)
    vector = 2 * fmt.vector_bytes(shape.n_text_state)
    self_bytes = own * decoders * shape.n_text_layer * vector
    cross_bytes = frames * shape.n_text_layer * vector
    pad_bytes = (
        padded(shape.n_audio_ctx, 256)
        * 2
        * fmt.vector_bytes(shape.n_audio_state or shape.n_text_state)
    )
    unit, name = (10**6, "MB") if release >= _DECIMAL else (2**20, "MiB")
    groups = tuple(
        Group(
            label,
            shape.n_text_layer,
            0,
            1,
            shape.n_text_layer * vector,
            always(cells),
            f"{shape.n_text_layer} · {vector:,}",
            f"{cells:,} cells from the start",
        )
        for label, cells in (("self attention", own * decoders), ("cross attention", frames))
    )
    figures = {"self_bytes": self_bytes, "cross_bytes": cross_bytes, "unit_bytes": unit}
    if pads:
        figures["pad_bytes"] = pad_bytes
    return EngineView(
        engine="whisper.cpp",
        version=str(release),
        groups=groups,
        max_model_len=shape.n_text_ctx,
        block_size=1,
        pool_block_bytes=0,
        available_bytes=None,
        blocks=None,
        kv_tokens=own * decoders,
        max_concurrency=None,
        estimated_max_len=shape.n_text_ctx,
        needed=always(self_bytes + cross_bytes + (pad_bytes if pads else 0)),
        log_lines=(
            f"kv self size  = {self_bytes / unit:7.2f} {name}",
            f"kv cross size = {cross_bytes / unit:7.2f} {name}",
            *([f"kv pad  size  = {pad_bytes / unit:7.2f} {name}"] if pads else []),
        ),
        figures=tuple(figures.items()),
    )
