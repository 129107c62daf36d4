"""``kvhouse trace``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import options
from kvhouse.cli.groups import grouped
from kvhouse.cli.output import print_json
from kvhouse.cli.progress import progress
from kvhouse.cli.trace_options import TraceOptions

if TYPE_CHECKING:
    from kvhouse.replayer.describe import Description
    from kvhouse.replayer.trace_request import TraceRequest


@grouped
def trace_command(
    trace: options.Trace,
    *,
    taken: TraceOptions,
    write: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write what was taken in kvhouse's own format: .jsonl, .csv, .parquet, "
            ".jsonl.gz or .csv.gz.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Describe a traffic trace: rate, burstiness, lengths, and how much of it repeats.

    With --write it converts, cuts out or generates one. It is read once and never held in memory.

    Example: kvhouse trace azure-conv-2023

    Example: kvhouse trace gamma:rate=2,cv=3,lengths=sharegpt,requests=1000 --write t.jsonl
    """
    from kvhouse.replayer.describe import Description
    from kvhouse.replayer.generate import most_requests
    from kvhouse.replayer.trace_write import write_trace
    from kvhouse.replayer.traces import TraceStream, told

    stream, description = TraceStream(trace, taken.selection()), Description()
    most = most_requests(trace, taken.limit)
    with progress("trace", most, as_json=as_json) as on_read:
        described = _described(told(stream, on_read), description)
        if write is None:
            for _ in described:
                pass
        else:
            write_trace(described, write)
    figures = description.figures(stream)
    if as_json:
        print_json(figures.to_dict())
        return
    from rich.console import Console

    from kvhouse.views.trace import show_trace

    show_trace(Console(), figures)


def _described(
    requests: Iterable[TraceRequest], description: Description
) -> Iterator[TraceRequest]:
    """The requests, each described as it passes."""
    for request in requests:
        description.add(request)
        yield request
