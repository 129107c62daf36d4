"""llama.cpp: a buffer of cells for all layers, one for windows, and states per sequence.

Its log prints MiB. ``llama_cells`` has the rules and their sources.
"""

from __future__ import annotations

from kvhouse.planner.engines.llama_cells import Buffer, Cells, LlamaCppOptions, allocate
from kvhouse.planner.engines.option_values import flags
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.view import EngineView, Group, always, mib
from kvhouse.spec.model import ModelSpec

#: Options as its command line takes them, beside the lengths.
_FLAGS = {
    "n_ubatch": "--ubatch-size",
    "unified": "--kv-unified",
    "swa_full": "--swa-full",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
}


def llama_cpp(spec: ModelSpec, options: LlamaCppOptions) -> EngineView:
    """What llama.cpp allocates for a model when a context is made; nothing grows afterwards.

    Raises:
        UnsupportedModel: A layer is of a kind that its caches are not known for.
        KvhouseError: Unknown type, or no length.
    """
    cells = allocate(spec, options)
    notes = ["all of it is allocated at the start; a shorter request leaves the rest idle"]
    if cells.compressed:
        notes.append("compressed entries lie in caches of their own, not counted")
    return EngineView(
        engine="llama.cpp",
        version=str(Version.of(options.version)),
        groups=_groups(cells, options.n_seq_max),
        max_model_len=cells.per_stream,
        block_size=1,
        pool_block_bytes=0,
        available_bytes=None,
        blocks=None,
        kv_tokens=cells.streams * cells.per_stream,
        max_concurrency=None,
        estimated_max_len=cells.per_stream,
        needed=always(cells.bytes),
        log_lines=tuple(_log(cells, options, len(spec.layers))),
        flags=(
            f"--ctx-size {cells.asked}",
            f"--parallel {options.n_seq_max}",
            *flags(options, _FLAGS),
        ),
        notes=tuple(notes),
        figures=tuple(_figures(cells, options.n_seq_max, len(spec.layers)).items()),
    )


def _figures(cells: Cells, sequences: int, layers: int) -> dict[str, int]:
    base, windows = cells.base, cells.windows
    figures = {
        "n_ctx": cells.streams * cells.per_stream,
        "k_bytes": base.k_bytes + windows.k_bytes,
        "v_bytes": base.v_bytes + windows.v_bytes,
        "kv_bytes": base.bytes + windows.bytes,
        "non_swa_cells": cells.per_stream,
        "non_swa_layers": base.layers,
        **_buffer_figures("non_swa_", base),
    }
    if windows.layers:
        figures |= {
            "swa_cells": windows.cells // cells.streams,
            "swa_layers": windows.layers,
            **_buffer_figures("swa_", windows),
        }
    if cells.states:
        figures |= {
            "r_bytes": cells.r_bytes,
            "s_bytes": cells.s_bytes,
            "recurrent_bytes": cells.r_bytes + cells.s_bytes,
            "state_cells": sequences,
            "layers": layers,
        }
    return figures


def _buffer_figures(name: str, buffer: Buffer) -> dict[str, int]:
    return {
        f"{name}k_bytes": buffer.k_bytes,
        f"{name}v_bytes": buffer.v_bytes,
        f"{name}kv_bytes": buffer.bytes,
    }


def _groups(cells: Cells, sequences: int) -> tuple[Group, ...]:
    groups = [
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
        for name, buffer in (("cells", cells.base), ("cells of windows", cells.windows))
        if buffer.layers
    ]
    if cells.states:
        each = (cells.r_bytes + cells.s_bytes) // sequences
        count, text = f"{sequences} from the start", f"{each:,} in all layers"
        groups.append(Group("state", cells.states, 0, 1, each, always(sequences), text, count))
    return tuple(groups)


def _log(cells: Cells, options: LlamaCppOptions, layers: int) -> list[str]:
    lines = [
        f"size = {mib(buffer.bytes)} MiB ({buffer.cells} cells, {buffer.layers} layers), "
        f"K: {mib(buffer.k_bytes)} MiB, V: {mib(buffer.v_bytes)} MiB"
        for buffer in (cells.base, cells.windows)
        if buffer.layers
    ]
    if cells.states:
        lines.append(
            f"size = {mib(cells.r_bytes + cells.s_bytes)} MiB ({options.n_seq_max} cells, "
            f"{layers} layers, {options.n_seq_max} seqs), R (f32): {mib(cells.r_bytes)} MiB, "
            f"S (f32): {mib(cells.s_bytes)} MiB"
        )
    return lines
