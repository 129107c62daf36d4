"""A load's files, read again."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhouse.bench.records import LoadRecord
from kvhouse.bench.store import FIGURES, RECORDS
from kvhouse.errors import KvhouseError
from kvhouse.replayer.trace_parquet import pyarrow_parquet
from kvhouse.spec.fields import show, show_path
from kvhouse.spec.json_file import parse_json_object

#: Bytes of a file that is read: about two hundred thousand requests.
MOST_BYTES = 2**26
_ADVICE = "give a file that `kvhouse bench URL … --out FILE` wrote"
_MOMENTS = ("arrival", "sent", "first_token", "last_token", "ended")
_COUNTS = ("asked_prompt_tokens", "prompt_tokens", "output_tokens", "cached_tokens")
_GAP = "between_tokens_p50"
_OPTIONAL = {"first_token", "last_token", "ended", "prompt_tokens", "cached_tokens", _GAP}
_MOST = 2**40
#: What a Parquet file begins with.
_PARQUET = b"PAR1"


@dataclass(frozen=True, slots=True)
class StoredLoad:
    """A load as its file tells it.

    Attributes:
        figures: Its figures.
        rows: A row for each request that was sent; see ``LoadRecord.row``.
    """

    figures: dict[str, Any]
    rows: list[dict[str, Any]]


def read_load(path: str) -> StoredLoad:
    """The load in a file of ``kvhouse bench --out``.

    Raises:
        KvhouseError: Unreadable, too large, damaged, or no such file.
    """
    where = show_path(path)
    raw = _read(path, where)
    read = _from_parquet if raw.startswith(_PARQUET) else _from_json
    figures, rows = read(raw, where)
    for name in ("target", "model", "made", "prompts"):
        if not isinstance(figures.get(name), str):
            raise KvhouseError(f"{where}: is no load of a bench, it lacks {name!r}: {_ADVICE}")
    for number, row in enumerate(rows, 1):
        _check(row, f"{where}: request {number}")
    return StoredLoad(figures, rows)


def _read(path: str, where: str) -> bytes:
    try:
        if not Path(path).is_file():
            raise KvhouseError(f"{where}: is no file: {_ADVICE}")
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise KvhouseError(f"{where}: cannot be read: {error.strerror}") from None
    if len(raw) > MOST_BYTES:
        raise KvhouseError(f"{where}: has more than {MOST_BYTES:,} bytes: bench fewer requests")
    return raw


def _from_json(raw: bytes, where: str) -> tuple[dict[str, Any], list[Any]]:
    figures: dict[str, Any] = parse_json_object(raw, where)
    rows = figures.pop(RECORDS, None)
    if not isinstance(rows, list):
        raise KvhouseError(f"{where}: holds no {RECORDS!r}, a list of requests: {_ADVICE}")
    return figures, rows


def _from_parquet(raw: bytes, where: str) -> tuple[dict[str, Any], list[Any]]:
    arrow, parquet = pyarrow_parquet()
    try:
        table = parquet.read_table(io.BytesIO(raw))
    except (arrow.ArrowException, OSError, ValueError):
        raise KvhouseError(f"{where}: cannot be read as Parquet: {_ADVICE}") from None
    figures = (table.schema.metadata or {}).get(FIGURES)
    if figures is None:
        raise KvhouseError(f"{where}: has no figures in its metadata: {_ADVICE}")
    return parse_json_object(figures, where), table.to_pylist()


def _check(row: object, place: str) -> None:
    """Refuse a row that no bench wrote."""
    if not isinstance(row, dict) or set(LoadRecord.columns()) - row.keys():
        raise KvhouseError(f"{place}: is no row of a bench: {_ADVICE}")
    for name in (*_MOMENTS, *_COUNTS, _GAP):
        value = row[name]
        if value is None and name in _OPTIONAL:
            continue
        kinds = (int,) if name in _COUNTS else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= _MOST:
            raise KvhouseError(f"{place}: {name} is {show(value)}: {_ADVICE}")
    moments = [row[name] for name in _MOMENTS if row[name] is not None]
    if (row["first_token"] is None) != (row["last_token"] is None) or moments != sorted(moments):
        raise KvhouseError(f"{place}: its times do not ascend: {_ADVICE}")
