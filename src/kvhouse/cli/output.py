"""How commands write: JSON, and files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.replayer.stop import Stop


class Encodable(Protocol):
    """What is written as one line: a step plan, an event."""

    def encode(self) -> bytes:
        """The line, its end included."""
        ...


def warn(text: str) -> None:
    """Say on stderr what a reader of the figures has to know; stdout stays what was asked for."""
    print(f"kvhouse: warning: {text}", file=sys.stderr)


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object, alone on stdout."""
    print(json.dumps(data, indent=2, allow_nan=False))


def require_apart(written: Mapping[str, str | None], read: Iterable[str | None]) -> None:
    """Make sure that no file is written twice, nor over one that is read.

    Args:
        written: Files to write by the option that names them; None where it was not given.
        read: Names that may be files.

    Raises:
        KvhouseError: Two are the same file.
    """
    from kvhouse.spec.fields import show_path

    inputs = {os.path.realpath(path) for path in read if path}
    outputs: dict[str, str] = {}
    for option, path in written.items():
        if path is None:
            continue
        where = os.path.realpath(path)
        if where in inputs and Path(where).exists():
            raise KvhouseError(f"{option} {show_path(path)}: is read by this command: name another")
        if where in outputs:
            both = f"{outputs[where]} and {option}"
            raise KvhouseError(f"{both} both name {show_path(path)}: give each a file of its own")
        outputs[where] = option


@contextmanager
def whole_file(
    path: str | None, what: str, stop: Stop | None = None
) -> Iterator[Callable[[bytes], None] | None]:
    """A sink for bytes that becomes ``path`` when the block ends well; None without a path.

    Args:
        path: The file.
        what: What an error calls it.
        stop: If it cut the block short, the file is called ``path.partial``.

    Raises:
        KvhouseError: The file cannot be written.
    """
    if path is None:
        yield None
        return
    from kvhouse.spec.fields import show_path

    target, named = Path(path), f"{what} {show_path(path)}"
    with _named(named):
        if _is_no_file(path):
            raise KvhouseError(f"{what} {path!r}: is no name for a file")
        partial = target.with_name(f".{target.name[:200]}.partial")
        file = partial.open("wb")

    def write(content: bytes) -> None:
        with _named(named):
            file.write(content)

    try:
        yield write
        cut_short = stop is not None and stop.cut_short
        with _named(named):
            file.close()  # which writes what is left
            partial.replace(target.with_name(f"{target.name}.partial") if cut_short else target)
    finally:
        with suppress(OSError):  # what could not be written cannot be written here either
            file.close()
        partial.unlink(missing_ok=True)


def _is_no_file(path: str) -> bool:
    """Whether this names a folder, or something that is there and no file."""
    target = Path(path)
    return not target.name or path.endswith("/") or (target.exists() and not target.is_file())


@contextmanager
def _named(what: str) -> Iterator[None]:
    """A block whose errors say what cannot be written."""
    try:
        yield
    except OSError as error:
        raise KvhouseError(f"{what}: cannot be written: {error.strerror}") from None


@contextmanager
def line_log(
    path: str | None, what: str, stop: Stop | None = None
) -> Iterator[Callable[[Encodable], None] | None]:
    """The same for what is written as lines."""
    with whole_file(path, what, stop) as write:
        yield None if write is None else lambda line: write(line.encode())


def plan_log(
    path: str | None, stop: Stop | None = None
) -> AbstractContextManager[Callable[[Encodable], None] | None]:
    """A log of step plans."""
    return line_log(path, "plan log", stop)
