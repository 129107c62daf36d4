"""A file of lines that are on the disk once they were added, whatever happens afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show_path


class Journal:
    """JSON objects, one a line; ``opened`` makes it.

    Attributes:
        lines: What it held when it was opened.
    """

    def __init__(self, path: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._path = path
        self._file = path.open("a+b")

    def add(self, line: dict[str, Any]) -> None:
        """Write a line, and wait until it is on the disk.

        Raises:
            KvhouseError: It cannot be written.
        """
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unusable(self._path, error) from None

    def remove(self) -> None:
        """Its lines are elsewhere."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others have it; what could not be written was said before."""
        with suppress(OSError):
            self._file.close()

    def _lock(self) -> None:
        """Keep other processes out until this one ends."""
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise KvhouseError(
                    f"{show_path(self._path)}: another sweep is writing this file: wait for it, or "
                    "name another one"
                ) from None

    def _is_named(self) -> bool:
        """Whether the file still has its name, which who had it locked before may have removed."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def _read(self) -> None:
        """Take in the lines that are whole, and cut off what was being written at the end."""
        self._file.seek(0)
        lines = self._file.readlines()
        if lines and not lines[0].startswith(b"{"):
            raise _foreign(self._path)
        try:
            self.lines = [json.loads(line) for line in lines if line.endswith(b"\n")]
        except (ValueError, RecursionError):
            raise _foreign(self._path) from None
        if not all(isinstance(line, dict) for line in self.lines):
            raise _foreign(self._path)
        self._file.truncate(sum(len(line) for line in lines if line.endswith(b"\n")))


@contextmanager
def opened(path: Path) -> Iterator[Journal]:
    """A journal for this process alone, with what earlier ones left in it.

    Raises:
        KvhouseError: Another process has it, it is something else, or it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            raise _foreign(path)
        journal = _locked(path)
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        journal._read()
        yield journal
    finally:
        journal.close()


def _locked(path: Path) -> Journal:
    """A journal that no other process has."""
    while True:
        journal = Journal(path)
        try:
            journal._lock()
            if journal._is_named():
                return journal
        except BaseException:
            journal.close()
            raise
        journal.close()


def _unusable(path: Path, error: OSError) -> KvhouseError:
    return KvhouseError(f"{show_path(path)}: cannot be written: {error.strerror}")


def _foreign(path: Path) -> KvhouseError:
    return KvhouseError(f"{show_path(path)}: is no journal of a sweep: name another file")
