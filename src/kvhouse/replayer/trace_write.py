"""Writes traces in kvhouse's own format, a request at a time, whole or not at all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any

from kvhouse.errors import TraceError
from kvhouse.replayer.trace_parquet import pyarrow_parquet
from kvhouse.replayer.trace_request import TraceRequest
from kvhouse.replayer.trace_text import reason_of
from kvhouse.spec.fields import show_path

#: Requests in a row group of Parquet, and so in memory at once.
ROW_GROUP = 2**16

File = IO[bytes] | GzipFile
Write = Callable[[dict[str, Any]], None]
#: Opens a writer of rows on a file and finishes the file at the end.
_Writer = Callable[[File], AbstractContextManager[Write]]


def write_trace(requests: Iterable[TraceRequest], path: str | Path) -> int:
    """Write requests to a file and return how many they were.

    Args:
        requests: In the order of arrival.
        path: Its end tells the encoding: ``.jsonl``, ``.csv`` or ``.parquet``, the texts also
            packed as ``.jsonl.gz`` and ``.csv.gz``. An existing file is replaced.

    Raises:
        TraceError: The name tells no encoding, or the file cannot be written. Nothing is left
            then, and a file that was there stays as it was.
    """
    target = Path(path)
    writer = _writer_for(target)
    written = 0
    with _whole(target) as file, writer(file) as write:
        for request in requests:
            written += 1
            try:
                write(row_of(request))
            except OSError as error:
                raise _unwritable(target, error) from None
    return written


def row_of(request: TraceRequest) -> dict[str, Any]:
    """A request's columns; what it lacks is None."""
    prefixed, named = request.prefix_id is not None, bool(request.hash_ids)
    return {
        "arrival": request.arrival,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "prefix_id": request.prefix_id,
        "prefix_tokens": request.prefix_tokens if prefixed else None,
        "tenant": request.tenant,
        "priority": request.priority or None,
        "hash_ids": request.hash_ids if named else None,
        "hash_block": request.hash_block if named else None,
        "cached_tokens": request.cached_tokens or None,
    }


def _writer_for(target: Path) -> _Writer:
    name = target.name.lower()
    writers = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
    writer = writers.get(Path(name.removesuffix(".gz")).suffix)
    if writer is None or (writer is _parquet and name.endswith(".gz")):
        known = ".jsonl, .csv, .parquet, .jsonl.gz or .csv.gz"
        raise TraceError(f"{show_path(target)}: the name must end with {known}")
    return _packed(writer) if name.endswith(".gz") else writer


@contextmanager
def _whole(target: Path) -> Iterator[File]:
    """A file that becomes ``target`` when the block ends well."""
    if target.exists() and not target.is_file():
        raise TraceError(f"{show_path(target)}: is no name for a file")
    partial = target.with_name(f".{target.name[:200]}.partial")
    try:
        file = partial.open("wb")
    except OSError as error:
        raise _unwritable(target, error) from None
    try:
        with file:
            yield file
        partial.replace(target)
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        partial.unlink(missing_ok=True)


def _unwritable(target: Path, error: OSError) -> TraceError:
    return TraceError(f"{show_path(target)}: cannot be written: {reason_of(error)}")


def _packed(writer: _Writer) -> _Writer:
    @contextmanager
    def packed(file: File) -> Iterator[Write]:
        # Without a name and a time, so that equal traces give equal files.
        with GzipFile("", "wb", fileobj=file, mtime=0) as stream, writer(stream) as write:
            yield write

    return packed


@contextmanager
def _jsonl(file: File) -> Iterator[Write]:
    def write(row: dict[str, Any]) -> None:
        present = {name: value for name, value in row.items() if value is not None}
        file.write(json.dumps(present, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    yield write


@contextmanager
def _csv(file: File) -> Iterator[Write]:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(row_of(TraceRequest(0.0, 1, 1)))

    def write(row: dict[str, Any]) -> None:
        ids = row["hash_ids"]
        table.writerow({**row, "hash_ids": ids and " ".join(map(str, ids))}.values())

    yield write
    text.detach()  # which writes what is left, and leaves the file open


@contextmanager
def _parquet(file: File) -> Iterator[Write]:
    arrow, parquet = pyarrow_parquet()
    kinds = {"arrival": arrow.float64(), "prefix_id": arrow.string(), "tenant": arrow.string()}
    kinds["hash_ids"] = arrow.list_(arrow.int64())
    names = row_of(TraceRequest(0.0, 1, 1))
    schema = arrow.schema([(name, kinds.get(name, arrow.int32())) for name in names])
    rows: list[dict[str, Any]] = []
    with parquet.ParquetWriter(file, schema) as writer:

        def flush() -> None:
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
            rows.clear()

        def write(row: dict[str, Any]) -> None:
            rows.append(row)
            if len(rows) == ROW_GROUP:
                flush()

        yield write
        flush()
