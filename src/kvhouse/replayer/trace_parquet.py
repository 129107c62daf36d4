"""kvhouse's own trace format as Parquet, through pyarrow, a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from gzip import GzipFile
from importlib import import_module
from typing import IO, Any

from kvhouse.errors import TraceError
from kvhouse.replayer.trace_lines import Line

#: Rows that pyarrow holds at once, and rows that become Python objects at once: a row may have
#: thousands of hash ids.
BATCH = 2**12
PIECE = 2**6


def pyarrow_parquet() -> tuple[Any, Any]:
    """The modules ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        TraceError: pyarrow is not installed.
    """
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise TraceError("Parquet needs pyarrow: pip install 'kvhouse[parquet]'") from None


def parquet_lines(stream: IO[bytes] | GzipFile, name: str) -> Iterator[tuple[int, Line]]:
    """Number, from 1, and content of each row.

    Raises:
        TraceError: The file is damaged, lacks a column or has an unknown one, or a row is wrong.
    """
    from kvhouse.replayer.trace_rows import check_columns, parse_row

    arrow, parquet = pyarrow_parquet()
    try:
        with parquet.ParquetFile(stream) as file:
            check_columns(list(file.schema_arrow.names))
            number = 0
            for batch in file.iter_batches(batch_size=BATCH):
                pieces = (batch.slice(at, PIECE) for at in range(0, len(batch), PIECE))
                for row in (row for piece in pieces for row in piece.to_pylist()):
                    number += 1
                    try:
                        yield number, parse_row(row)
                    except ValueError as error:
                        raise TraceError(f"{name}, row {number}: {error}") from None
    except (arrow.ArrowException, OSError, ValueError) as error:
        words = " ".join(str(error).split())
        reason = "".join(letter if letter.isprintable() else "?" for letter in words)
        raise TraceError(f"trace {name}: cannot be read as Parquet: {reason[:200]}") from None
