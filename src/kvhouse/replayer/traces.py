"""Traffic traces: when requests arrive and how long their prompts and outputs are."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from kvhouse.errors import TraceError
from kvhouse.replayer.generate import generator_of
from kvhouse.replayer.trace_formats import TextFormat, format_of
from kvhouse.replayer.trace_lines import Line
from kvhouse.replayer.trace_parquet import parquet_lines
from kvhouse.replayer.trace_request import TraceRequest
from kvhouse.replayer.trace_select import Selection, Tally
from kvhouse.replayer.trace_table import TraceTable
from kvhouse.replayer.trace_text import BUNDLED, PARQUET, lines_of, open_trace
from kvhouse.spec.fields import show_path

__all__ = ["Trace", "TraceRequest", "TraceStream", "bundled_names", "read_trace"]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival.

    Attributes:
        name: The file, the bundled trace or the description that they come from.
        requests: The requests; a ``TraceTable`` where they were read.
        selection: What was taken of the trace, and how it was stretched.
        cut: How many requests were cut to ``selection.max_length``.
        skipped: Lines of the file that hold no request to be served.

    Raises:
        TraceError: A request that was not read arrives at no moment, such as NaN.
    """

    name: str
    requests: Sequence[TraceRequest]
    selection: Selection = field(default=Selection())
    cut: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.requests, TraceTable):  # whose requests are checked as they are read
            return
        for number, request in enumerate(self.requests):
            if not math.isfinite(request.arrival):
                raise TraceError(f"request {number} arrives at {request.arrival}: give seconds")

    @property
    def scale_lengths(self) -> float:
        """The factor that all lengths were multiplied with."""
        return self.selection.scale_lengths

    @property
    def mean_tokens(self) -> int:
        """Mean length of a request, prompt and output, rounded up; 1 for a trace without any."""
        if not self.requests:
            return 1
        if isinstance(self.requests, TraceTable):
            total = self.requests.total_tokens
        else:
            total = sum(request.prompt_tokens + request.output_tokens for request in self.requests)
        return -(-total // len(self.requests))


class TraceStream:
    """A trace that is read or generated anew at each iteration, and never held.

    Attributes:
        name: The file, the bundled trace or the description.
        selection: What is taken of it.
        format: What the latest iteration found it to be.
        tally: What the latest iteration came across; complete when that has ended.
    """

    def __init__(self, source: str | Path, selection: Selection | None = None) -> None:
        """Args: source: As for ``read_trace``. selection: By default all of it, as it is."""
        self.name = show_path(source)
        self.selection = selection or Selection()
        self.format = ""
        self.tally = Tally()
        self._source = source

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests.

        Raises:
            TraceError: The trace cannot be read or holds no request; the message names the line.
        """
        self.tally = Tally()
        taken = self.selection.of(self._all(), self.tally)
        first = next(taken, None)
        if first is None:
            raise TraceError(f"trace {self.name}: holds no request{self._where()}")
        yield first
        yield from taken

    def _where(self) -> str:
        whole = Selection(limit=self.selection.limit)
        return "" if self.selection == whole else " in the part that was asked for"

    def _all(self) -> Iterator[TraceRequest]:
        generator = (
            generator_of(self._source, TraceStream) if isinstance(self._source, str) else None
        )
        if generator is not None:
            self.format = "generated"
            yield from generator
            return
        with open_trace(self._source) as (stream, head):
            if head == PARQUET:
                self.format = "parquet"
                yield from _own(parquet_lines(stream, self.name), self.name, "row")
                return
            numbered = lines_of(stream, self.name)
            first = next(numbered, None)
            if first is None:
                raise TraceError(f"trace {self.name}: is empty")
            try:
                found = format_of(first[1])
            except ValueError as error:
                raise TraceError(f"{self.name}, line {first[0]}: {error}") from None
            self.format = found.name
            texts = numbered if found.has_header else chain([first], numbered)
            yield from self._parsed(texts, found)

    def _parsed(
        self, texts: Iterable[tuple[int, str]], found: TextFormat
    ) -> Iterator[TraceRequest]:
        lines = _lines(texts, found, self.name, self.tally)
        if found.window:
            lines = _reordered(lines, found.window, self.name)
        if not found.from_first:
            yield from _own(lines, self.name, "line")
            return
        begin: float | None = None
        for number, line in _ordered(lines, self.name, "line"):
            del number
            begin = line.time if begin is None else begin
            yield _request(line, (line.time - begin) / found.ticks)


def bundled_names() -> tuple[str, ...]:
    """Names of the traces that come with kvhouse."""
    return tuple(BUNDLED)


def read_trace(
    source: str | Path,
    *,
    limit: int | None = None,
    scale_lengths: float = 1.0,
    max_length: int | None = None,
    scale_rate: float = 1.0,
    start: float = 0.0,
    duration: float | None = None,
    sample: float = 1.0,
    seed: int = 0,
    on_read: Callable[[TraceRequest], None] | None = None,
) -> Trace:
    """Read a trace into memory: about 60 bytes a request, and 8 for each of its hash ids.

    Args:
        source: A file (Azure CSV, Mooncake JSONL, an access log, or kvhouse's own JSONL, CSV or
            Parquet; the first line tells which), the name of a bundled trace, or a description of
            generated traffic such as ``poisson:rate=2,requests=100,prompt=200,output=50``.
        limit: See ``Selection``, as for all that follows.
        scale_lengths: A factor for all lengths.
        max_length: The length to cut longer requests to.
        scale_rate: A factor for the rate of arrivals.
        start: Seconds of the trace to leave out.
        duration: Seconds of the trace to take.
        sample: The share of requests to take.
        seed: Decides which these are.
        on_read: Called for each request.

    Raises:
        TraceError: The trace cannot be read or holds no request, or an option is out of range;
            the message names the file and the line.
    """
    selection = Selection(
        start=start,
        duration=duration,
        sample=sample,
        seed=seed,
        limit=limit,
        scale_rate=scale_rate,
        scale_lengths=scale_lengths,
        max_length=max_length,
    )
    return select_trace(source, selection, on_read)


def select_trace(
    source: str | Path,
    selection: Selection,
    on_read: Callable[[TraceRequest], None] | None = None,
) -> Trace:
    """Read what is selected of a trace into memory; see ``read_trace``.

    Raises:
        TraceError: The trace cannot be read or holds no request.
    """
    stream = TraceStream(source, selection)
    table = TraceTable(stream if on_read is None else told(stream, on_read))
    return Trace(str(source), table, selection, stream.tally.cut, stream.tally.skipped)


def told(
    requests: Iterable[TraceRequest], on_read: Callable[[TraceRequest], None]
) -> Iterator[TraceRequest]:
    """The requests; ``on_read`` is told of each as it passes."""
    for request in requests:
        on_read(request)
        yield request


def _lines(
    texts: Iterable[tuple[int, str]], found: TextFormat, name: str, tally: Tally
) -> Iterator[tuple[int, Line]]:
    for number, text in texts:
        try:
            line = found.parse(text)
        except ValueError as error:
            raise TraceError(f"{name}, line {number}: {error}") from None
        if line is None:
            tally.skipped += 1
        else:
            yield number, line


def _ordered(lines: Iterable[tuple[int, Line]], name: str, unit: str) -> Iterator[tuple[int, Line]]:
    before: float | None = None
    for number, line in lines:
        if before is not None and line.time < before:
            raise TraceError(f"{name}, {unit} {number}: arrives before the request above it")
        before = line.time
        yield number, line


def _reordered(
    lines: Iterable[tuple[int, Line]], window: int, name: str
) -> Iterator[tuple[int, Line]]:
    """By time, where no line comes more than ``window`` lines too late."""
    waiting: list[tuple[float, int, Line]] = []
    last: float | None = None
    for number, line in lines:
        if last is not None and line.time < last:
            raise TraceError(
                f"{name}, line {number}: over {window:,} lines too late: sort the file"
            )
        heapq.heappush(waiting, (line.time, number, line))
        if len(waiting) > window:
            last, earliest, first = heapq.heappop(waiting)
            yield earliest, first
    for _, number, line in sorted(waiting):
        yield number, line


def _own(lines: Iterable[tuple[int, Line]], name: str, unit: str) -> Iterator[TraceRequest]:
    """Requests of the own format, whose times are arrivals already."""
    return (_request(line, line.time) for _, line in _ordered(lines, name, unit))


def _request(line: Line, arrival: float) -> TraceRequest:
    return TraceRequest(arrival, *line[1:])
