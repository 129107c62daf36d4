"""JSON files from outside, read within bounds of time and memory."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from kvhouse.errors import SpecError
from kvhouse.spec.fields import show, show_path

#: A config has tens of kilobytes; beyond this many bytes a file is not one, and is not read.
MOST_BYTES = 4 * 2**20


def read_json_object(path: Path) -> dict[str, object]:
    """The object in a JSON file.

    NaN and Infinity are accepted as numbers, because published configs contain them; a field
    that must be an integer refuses them.

    Raises:
        SpecError: Unreadable, too large, not UTF-8, not JSON, nested too deeply, a key stated
            twice, or something other than an object.
    """
    where = show_path(path)
    try:
        text = _read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{where}: not UTF-8 text at byte {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise SpecError(f"{where}: not JSON: {reason}") from None
    except _StatedTwice as error:
        raise SpecError(f"{where}: not a usable JSON file: {error}") from None
    except RecursionError:
        raise SpecError(f"{where}: not a usable JSON file: nested too deeply") from None
    except ValueError:  # all that is left: Python bounds the digits that it converts
        reason = "a whole number of thousands of digits"
        raise SpecError(f"{where}: not a usable JSON file: {reason}") from None
    if not isinstance(value, dict):
        raise SpecError(f"{where}: holds {show(value)}, not an object")
    return value


class _StatedTwice(Exception):
    """A key that an object states more than once."""


def _read_bytes(path: Path) -> bytes:
    where = show_path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SpecError(f"{where}: not a regular file")
        if status.st_size > MOST_BYTES:
            raise SpecError(f"{where}: {status.st_size} bytes; a config has at most {MOST_BYTES}")
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError as error:
        raise SpecError(f"{where}: cannot be read: {error.strerror or error}") from None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _StatedTwice(f"key {show(key)} is stated twice")
            seen.add(key)
    return result
