"""Traffic traces: when requests arrived and how long their prompts and outputs were."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import IO

from kvhouse.errors import TraceError
from kvhouse.replayer.trace_lines import AZURE_HEADER, MOST_TOKENS, Line, parser_for

#: A longer line is no line of a trace; it is refused before it fills the memory.
MOST_LINE_BYTES = 2**20

_BUNDLED = {"azure-conv-2023": "azure-conv-2023.csv", "mooncake-conv": "mooncake-conv.jsonl"}


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        arrival: Seconds after the trace's first request.
        prompt_tokens: Length of the prompt.
        output_tokens: Length of the output, at least 1.
        hash_ids: One id for each 512 tokens of the prompt as published, before any scaling;
            equal ids mean equal tokens from the prompt's start on. Empty where unknown.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival.

    Attributes:
        name: The file or the bundled trace that they come from.
        requests: The requests.
        scale_lengths: The factor that all lengths were multiplied with.
        max_length: The length that longer requests were cut to, if any was asked for.
        cut: How many requests were cut to it.
    """

    name: str
    requests: tuple[TraceRequest, ...]
    scale_lengths: float = 1.0
    max_length: int | None = None
    cut: int = 0

    @property
    def mean_tokens(self) -> int:
        """Mean length of a request, prompt and output, rounded up; 1 for a trace without any."""
        total = sum(request.prompt_tokens + request.output_tokens for request in self.requests)
        return -(-total // len(self.requests)) if self.requests else 1


def bundled_names() -> tuple[str, ...]:
    """Names of the traces that come with kvhouse."""
    return tuple(_BUNDLED)


def read_trace(
    source: str | Path,
    *,
    limit: int | None = None,
    scale_lengths: float = 1.0,
    max_length: int | None = None,
) -> Trace:
    """Read an Azure CSV or a Mooncake JSONL trace, line by line.

    Args:
        source: A file, or the name of a bundled trace.
        limit: Read the first so many requests only.
        scale_lengths: Multiply prompt and output lengths with this, round half up, at least 1.
        max_length: Cut requests longer than this in all, prompt first but never below 1 token;
            ``Trace.cut`` counts them. By default nothing is cut.

    Raises:
        TraceError: The trace cannot be read or holds no request, or an option is out of range;
            the message names the file and the line.
    """
    _check_options(limit, scale_lengths, max_length)
    requests: list[TraceRequest] = []
    cut = 0
    with _open(source) as stream:
        for request in _requests(stream, str(source)):
            scaled = _scale(request, scale_lengths)
            fitting = scaled if max_length is None else _cut(scaled, max_length)
            cut += fitting != scaled
            requests.append(fitting)
            if len(requests) == limit:
                break
    if not requests:
        raise TraceError(f"trace {source}: holds no request")
    return Trace(str(source), tuple(requests), scale_lengths, max_length, cut)


def _check_options(limit: int | None, scale_lengths: float, max_length: int | None) -> None:
    if limit is not None and limit < 1:
        raise TraceError(f"limit {limit}: read at least 1 request")
    if not (math.isfinite(scale_lengths) and scale_lengths > 0):
        raise TraceError(f"scale_lengths {scale_lengths}: give a finite factor above 0")
    if max_length is not None and max_length < 2:
        raise TraceError(f"max_length {max_length}: a request has at least 2 tokens")


def _open(source: str | Path) -> AbstractContextManager[IO[bytes]]:
    bundled = _BUNDLED.get(str(source))
    if bundled is not None:
        return files("kvhouse").joinpath("data", "traces", bundled).open("rb")
    try:
        return Path(source).open("rb")
    except FileNotFoundError:
        known = ", ".join(_BUNDLED)
        raise TraceError(f"no trace {source}: give a file or one of {known}") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"trace {source}: cannot be read: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _lines(stream: IO[bytes], name: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank."""
    number = 0
    while True:
        try:
            raw = stream.readline(MOST_LINE_BYTES + 1)
        except OSError as error:
            raise TraceError(f"trace {name}: cannot be read: {_reason(error)}") from None
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


def _requests(stream: IO[bytes], name: str) -> Iterator[TraceRequest]:
    lines = _lines(stream, name)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"trace {name}: is empty")
    number, text = first
    found = parser_for(text)
    if found is None:
        raise TraceError(
            f"{name}, line {number}: neither the header {AZURE_HEADER} nor a JSON object"
        )
    parse, is_header = found
    begin = before = None
    for number, text in lines if is_header else chain([first], lines):
        try:
            line = parse(text)
        except ValueError as error:
            raise TraceError(f"{name}, line {number}: {error}") from None
        begin = line.nanoseconds if begin is None else begin
        if before is not None and line.nanoseconds < before:
            raise TraceError(f"{name}, line {number}: arrives before the request above it")
        before = line.nanoseconds
        yield _request(line, begin)


def _request(line: Line, begin: int) -> TraceRequest:
    seconds = (line.nanoseconds - begin) / 10**9
    return TraceRequest(seconds, line.prompt_tokens, line.output_tokens, line.hash_ids)


def _scale(request: TraceRequest, factor: float) -> TraceRequest:
    if factor == 1.0:
        return request

    def scaled(tokens: int) -> int:
        if tokens * factor > MOST_TOKENS:
            raise TraceError(f"scale_lengths {factor}: gives over {MOST_TOKENS:,} tokens a request")
        return max(1, math.floor(tokens * factor + 0.5))

    return replace(
        request,
        prompt_tokens=scaled(request.prompt_tokens),
        output_tokens=scaled(request.output_tokens),
    )


def _cut(request: TraceRequest, max_length: int) -> TraceRequest:
    output = min(request.output_tokens, max_length - 1)
    prompt = min(request.prompt_tokens, max_length - output)
    return replace(request, prompt_tokens=prompt, output_tokens=output)
