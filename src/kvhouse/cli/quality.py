"""``kvhouse quality``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvhouse.cli import answering, engine_options, options
from kvhouse.cli.output import print_json
from kvhouse.cli.progress import progress
from kvhouse.errors import KvhouseError

#: What weights and arithmetic are in, whatever the model's own dtype.
_DTYPE = "float32"


def quality_command(
    model: engine_options.RunModel,
    kv_format: Annotated[
        str | None,
        typer.Option(
            "--kv-format",
            metavar="FORMATS",
            help="Formats to measure, with commas between: int8,int4. By default all.",
        ),
    ] = None,
    rotation: Annotated[
        bool | None,
        typer.Option(
            "--kv-rotation/--no-kv-rotation",
            help="Measure with Q, K and V rotated before rounding, or without. By default both.",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            help="A text file in UTF-8, in place of the one that ships with kvhouse, from William "
            "Morris's News from Nowhere (public domain)."
        ),
    ] = None,
    window: Annotated[
        int, typer.Option(metavar="TOKENS", help="Tokens read at a time, from an empty cache on.")
    ] = 1024,
    as_json: options.AsJson = False,
) -> None:
    """Measure what a KV format costs in accuracy: perplexity, KL divergence, top-1 agreement.

    The model reads a text once with keys and values in float32 and once in each format. Weights
    and arithmetic are float32 throughout, so the format is all that differs.

    Example: kvhouse quality smollm2 --kv-format int8,int4
    """
    answering.require(model)

    from kvhouse.engine.load import describe_model
    from kvhouse.engine.quality import (
        TEXT,
        bundled_text,
        kv_bytes,
        measure_quality,
        text_ids,
        variants_of,
    )
    from kvhouse.engine.room import require_room

    names = [name.strip() for name in (kv_format or "").split(",") if name.strip()]
    variants = variants_of(names, rotation)
    content = bundled_text() if text is None else _read(text)
    described = describe_model(model)
    held = kv_bytes(described, variants, window, _DTYPE)
    require_room(described, held, _DTYPE, "give a smaller --window, or a smaller model")
    loaded = answering.load(model, _DTYPE)
    ids = text_ids(loaded, content)
    passes = len(ids) // max(1, window) * (1 + len(variants))
    with progress("quality", passes, unit="passes", as_json=as_json) as advance:
        report = measure_quality(
            loaded,
            ids,
            variants,
            text=TEXT if text is None else text.name,
            window=window,
            on_pass=lambda: advance(None),
        )
    if as_json:
        print_json(report.to_dict())
        return
    from rich.console import Console

    from kvhouse.views.quality import show_quality

    show_quality(Console(), report)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise KvhouseError(f"text {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KvhouseError(f"text {path}: is not UTF-8") from None
