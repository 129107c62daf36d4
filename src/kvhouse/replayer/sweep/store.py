"""The results file of a sweep: Parquet in the end, and until then a journal that loses nothing.

Each row is a line of the journal, ``FILE.journal``, before it counts as done. When a sweep ends,
be it early, all rows become the Parquet file, and the journal goes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvhouse.errors import KvhouseError
from kvhouse.replayer.sweep.journal import Journal, opened
from kvhouse.replayer.sweep.row import Row
from kvhouse.replayer.sweep.work import OF_SOME
from kvhouse.replayer.trace_parquet import pyarrow_parquet
from kvhouse.spec.fields import show_path

#: Under which name the Parquet file's metadata say what it holds.
_FACTS = b"kvhouse.sweep"


class Store:
    """Rows by their key, each of them safe once it was added; ``opened_store`` makes it.

    Attributes:
        rows: Those of earlier runs too.
        facts: What decides the figures of all of them.
        added: How many were added in this run.
    """

    def __init__(self, path: Path, facts: Mapping[str, str], journal: Journal) -> None:
        self.rows: dict[str, Row] = {}
        self.facts = dict(facts)
        self.added = 0
        self._path, self._journal = path, journal
        if path.exists():
            self._take(*_read(path))
        if journal.lines:
            self._take(journal.lines[0], journal.lines[1:])
        else:
            journal.add(self.facts)

    def add(self, row: Row) -> None:
        """Keep a row; one with the same key gives way.

        Raises:
            KvhouseError: It cannot be written.
        """
        self._journal.add(row.to_dict())
        self.rows[row.key] = row
        self.added += 1

    def _take(self, facts: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
        names = dict.fromkeys([*self.facts, *facts])
        differ = [
            name
            for name in names
            if facts.get(name) != self.facts.get(name)
            and not (name.startswith(OF_SOME) and None in (facts.get(name), self.facts.get(name)))
        ]
        if differ:
            raise KvhouseError(
                f"{show_path(self._path)}: holds cells of another sweep, with another "
                f"{', '.join(differ)}: name another file"
            )
        self.facts |= facts
        try:
            for values in rows:
                row = Row.of(values)
                self.rows[row.key] = row
        except TypeError:
            raise _foreign(self._path) from None

    def finish(self, keys: Iterable[str]) -> None:
        """Write the Parquet file: rows with these keys first, in their order.

        Raises:
            KvhouseError: It cannot be written; the journal stays.
        """
        place = {key: index for index, key in enumerate(keys)}
        rows = sorted(self.rows.values(), key=lambda row: place.get(row.key, len(place)))
        _write(self._path, self.facts, rows)
        self._journal.remove()


@contextmanager
def opened_store(path: str | Path, facts: Mapping[str, str]) -> Iterator[Store]:
    """The results file for this process alone; call ``finish`` before the block ends.

    Args:
        path: A name that ends in ``.parquet``.
        facts: What decides the figures.

    Raises:
        KvhouseError: The file is no such file, holds cells of another sweep, is being written by
            another process, or cannot be written; or pyarrow is not installed.
    """
    target = Path(path)
    named = target.suffix == ".parquet" and str(path).endswith(".parquet")
    if not named or _is_no_file(target):
        raise KvhouseError(f"{show_path(target)}: name a results file that ends in .parquet")
    pyarrow_parquet()
    with opened(target.with_name(f"{target.name}.journal")) as journal:
        begun = bool(journal.lines)
        store = None
        try:
            store = Store(target, facts, journal)
            yield store
        finally:
            if not begun and (store is None or not store.added):
                journal.remove()


def _is_no_file(path: Path) -> bool:
    """Whether something else has this name.

    Raises:
        KvhouseError: Nothing can have it.
    """
    try:
        return path.exists() and not path.is_file()
    except OSError as error:
        raise KvhouseError(f"{show_path(path)}: cannot be used: {error.strerror}") from None


def _read(path: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    arrow, parquet = pyarrow_parquet()
    try:
        with path.open("rb") as file:
            table = parquet.ParquetFile(file).read()
        return dict(json.loads(table.schema.metadata[_FACTS])), table.to_pylist()
    except (arrow.ArrowException, OSError, ValueError, KeyError, TypeError):
        raise _foreign(path) from None


def _write(path: Path, facts: Mapping[str, str], rows: list[Row]) -> None:
    arrow, parquet = pyarrow_parquet()
    kinds = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema(
        [(name, kinds[kind]) for name, kind in Row.columns().items()],
        metadata={_FACTS: json.dumps(facts)},
    )
    table = arrow.Table.from_pylist([row.to_dict() for row in rows], schema=schema)
    partial = path.with_name(f".{path.name[:200]}.partial")
    try:
        with partial.open("wb") as file:
            parquet.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise KvhouseError(f"{show_path(path)}: cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def _foreign(path: Path) -> KvhouseError:
    return KvhouseError(f"{show_path(path)}: is no results file of a sweep: name another file")
