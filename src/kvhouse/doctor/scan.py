"""Finding the few lines of a log that engines write about memory, in bounded time and memory.

Chunks of bytes are searched for anchors, which costs no Python code for lines that have none. Only
a line that may have an anchor is cut out, and only formats whose needle it has are tried on it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from kvhouse.doctor.anchors import Anchors
from kvhouse.doctor.engines import LINES
from kvhouse.doctor.line import Line
from kvhouse.web.mask import ESCAPES

CHUNK = 2**20
#: A longer line is cut: configurations that engines print are a fifth of it.
MOST_LINE = 2**16
#: Places in a line that are looked at; what engines print has a few.
_MOST_ANCHORS = 256
#: What is kept of a long line before its anchor.
_BEFORE = 2**13
#: Lines that repeat what users sent; a prompt may look like anything.
_OF_USERS = (b"Received request", b"prompt: ", b'"prompt"', b'"messages"', b"'messages'")
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


_ANCHORS = tuple(dict.fromkeys(each.anchor for each in LINES))
#: For each anchor the formats that have it.
_FORMATS = tuple(tuple(each for each in LINES if each.anchor == anchor) for anchor in _ANCHORS)
_FINDER = Anchors(_ANCHORS)


class Readable(Protocol):
    """What bytes are read from: a file, standard input, a reply."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many; none at the end."""
        ...


class Candidate(NamedTuple):
    """A line that may say something.

    Attributes:
        number: Its number, from 1.
        text: The line, cut and without escape sequences.
        lines: The formats whose needle it has.
    """

    number: int
    text: str
    lines: tuple[Line, ...]


@dataclass(slots=True)
class Scanner:
    """Scans one stream once.

    Attributes:
        size: Bytes that were read.
        count: Lines that were read.
    """

    size: int = 0
    count: int = 0

    def candidates(self, stream: Readable) -> Iterator[Candidate]:
        """Every line that has an anchor and a needle, in order."""
        rest = b""
        for chunk in self._chunks(stream):
            buffer = rest + chunk if rest else chunk
            end = buffer.rfind(b"\n") + 1
            if not end and len(buffer) < MOST_LINE:
                rest = buffer
                continue
            # A chunk without the end of a line is searched as it is, and its line goes on after it.
            end = end or len(buffer)
            rest = buffer[end:]
            yield from self._in(buffer[:end])
        if rest:
            yield from self._in(rest)
            self.count += 1

    def _chunks(self, stream: Readable) -> Iterator[bytes]:
        """Chunks as bytes of an encoding that extends ASCII."""
        decoder: codecs.IncrementalDecoder | None = None
        first = True
        while chunk := stream.read(CHUNK):
            self.size += len(chunk)
            if first:
                name = _UTF16.get(chunk[:2])
                decoder = codecs.getincrementaldecoder(name)("replace") if name else None
                first = False
            yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")

    def _in(self, buffer: bytes) -> Iterator[Candidate]:
        """Candidates of whole lines."""
        if b"\x1b" in buffer or b"\\u001" in buffer:
            buffer = ESCAPES.sub(b"", buffer)
        counted = start = first = 0
        end = -1
        anchors: list[tuple[int, ...]] = []
        for at, indexes in _FINDER.hits(buffer):
            if at < end:
                anchors.append(indexes)
                continue
            if anchors:
                self.count += buffer.count(b"\n", counted, start)
                counted = start
                found = self._candidate(buffer, start, end, first, anchors)
                if found is not None:
                    yield found
            start = buffer.rfind(b"\n", 0, at) + 1
            end = buffer.find(b"\n", at)
            end = len(buffer) if end < 0 else end
            first, anchors = at, [indexes]
        if anchors:
            self.count += buffer.count(b"\n", counted, start)
            counted = start
            found = self._candidate(buffer, start, end, first, anchors)
            if found is not None:
                yield found
        self.count += buffer.count(b"\n", counted)

    def _candidate(
        self, buffer: bytes, start: int, end: int, first: int, anchors: list[tuple[int, ...]]
    ) -> Candidate | None:
        begin = max(start, first - _BEFORE)
        content = buffer[begin : min(end, begin + MOST_LINE)]
        lines = _formats(tuple(anchors[:_MOST_ANCHORS]), content)
        if not lines:
            return None
        for word in _OF_USERS:
            if word in content:
                lines = tuple(each for each in lines if each.anywhere)
                break
        text = content.decode("utf-8", "replace")
        if b'{"' in content[:_BEFORE]:  # a line within JSON, perhaps behind a container's name
            text = text.replace('\\"', '"').replace("\\n", " ")
        return Candidate(self.count + 1, text, lines) if lines else None


def _formats(anchors: tuple[tuple[int, ...], ...], content: bytes) -> tuple[Line, ...]:
    """The formats to try on a line, in the order of ``LINES``."""
    found = []
    for each in _possible(anchors):
        if each.needle in content and each.anchor in content:
            if each.only:
                return (each,)
            found.append(each)
    return tuple(found)


@lru_cache(maxsize=1024)
def _possible(anchors: tuple[tuple[int, ...], ...]) -> tuple[Line, ...]:
    """The formats of some anchors; lines of one kind have the same ones again and again."""
    indexes = {index for several in anchors for index in several}
    return tuple(each for index in sorted(indexes) for each in _FORMATS[index])
