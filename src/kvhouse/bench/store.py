"""A load as files: its figures as JSON, its requests as Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvhouse.bench.records import LoadRecord
from kvhouse.errors import KvhouseError
from kvhouse.replayer.trace_parquet import pyarrow_parquet
from kvhouse.spec.fields import show_path

#: Under which key of a Parquet file's metadata the figures stand.
FIGURES = b"kvhouse.bench"
#: Under which key of a JSON file the requests do.
RECORDS = "records"
_TEXTS = ("error", "reason")
_COUNTS = (
    "index",
    "asked_prompt_tokens",
    "asked_output_tokens",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
)


def kind_of(path: str) -> str:
    """``json`` or ``parquet``, by a file's name.

    Raises:
        KvhouseError: It is neither, or what writes it is not installed.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in ("json", "parquet"):
        raise KvhouseError(f"--out {show_path(path)}: the name must end with .json or .parquet")
    if kind == "parquet":
        pyarrow_parquet()
    return kind


def as_json(figures: dict[str, Any], records: Sequence[LoadRecord]) -> bytes:
    """The figures as ``--json`` prints them, and of a load a row for each request."""
    values = {**figures, RECORDS: [record.row() for record in records]} if records else figures
    return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode()


def as_parquet(figures: dict[str, Any], records: Sequence[LoadRecord]) -> bytes:
    """A row for each request; the figures stand in the file's metadata."""
    arrow, parquet = pyarrow_parquet()
    rows = [record.row() for record in records]
    names = LoadRecord.columns()
    kinds = dict.fromkeys(_COUNTS, arrow.int64())
    kinds |= dict.fromkeys(_TEXTS, arrow.string())
    schema = arrow.schema(
        [(name, kinds.get(name, arrow.float64())) for name in names],
        metadata={FIGURES: json.dumps(figures, allow_nan=False)},
    )
    out = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), out)
    return out.getvalue()
