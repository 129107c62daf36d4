"""Trace files as lines of text, within bounds of memory, packed with gzip or not."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import GzipFile
from importlib.resources import files
from io import BufferedReader
from pathlib import Path
from typing import IO

from kvhouse.errors import TraceError
from kvhouse.spec.fields import show_path

#: A longer line is no line of a trace; it is refused before it fills the memory.
MOST_LINE_BYTES = 2**20
BUNDLED = {"azure-conv-2023": "azure-conv-2023.csv", "mooncake-conv": "mooncake-conv.jsonl"}

PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"

_READ_ERRORS = (OSError, EOFError, zlib.error)


@contextmanager
def open_trace(source: str | Path) -> Iterator[tuple[IO[bytes] | GzipFile, bytes]]:
    """A file or a bundled trace, unpacked, and its first bytes.

    Raises:
        TraceError: There is no such file, or it cannot be read.
    """
    bundled = BUNDLED.get(str(source))
    if bundled is not None:
        with files("kvhouse").joinpath("data", "traces", bundled).open("rb") as stream:
            yield stream, b""
        return
    name = show_path(source)
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - closed below, errors here are named
    except FileNotFoundError:
        known = ", ".join(BUNDLED)
        raise TraceError(
            f"no trace {name}: give a file or one of {known}, or describe traffic, such as "
            "poisson:rate=2,lengths=sharegpt,requests=100"
        ) from None
    except (OSError, ValueError) as error:
        raise TraceError(f"trace {name}: cannot be read: {reason_of(error)}") from None
    with file:
        head = _head_of(file, name)
        if head == _ZSTD:
            raise TraceError(f"trace {name}: is packed with zstd: unpack it, or pack it with gzip")
        if head[:2] == _GZIP:
            with GzipFile(fileobj=file, mode="rb") as unpacked:
                yield unpacked, b""
        else:
            yield file, head


def _head_of(file: BufferedReader, name: str) -> bytes:
    """The first bytes of a file, which are read again."""
    try:
        return file.peek(4)[:4]
    except OSError as error:
        raise TraceError(f"trace {name}: cannot be read: {reason_of(error)}") from None


def reason_of(error: BaseException) -> str:
    """What the system says, in a few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def lines_of(stream: IO[bytes] | GzipFile, name: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank.

    Raises:
        TraceError: The file cannot be read, or a line is too long or no text.
    """
    number = 0
    while True:
        try:
            raw = stream.readline(MOST_LINE_BYTES + 1)
        except _READ_ERRORS as error:
            raise TraceError(f"trace {name}: cannot be read: {reason_of(error)}") from None
        if not raw:
            return
        number += 1
        if len(raw) > MOST_LINE_BYTES:
            raise TraceError(f"{name}, line {number}: longer than {MOST_LINE_BYTES:,} bytes")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise TraceError(f"{name}, line {number}: not UTF-8 text") from None
        if "\0" in text:
            raise TraceError(f"{name}, line {number}: holds a NUL byte, so not a text file")
        if text:
            yield number, text
