"""What is taken of a trace: options that all commands with traffic share, and the reading of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli.progress import progress

if TYPE_CHECKING:
    from kvhouse.replayer.trace_select import Selection
    from kvhouse.replayer.traces import Trace


@dataclass(frozen=True, slots=True)
class PartOptions:
    """Which requests are taken, and how long they are: of ``sweep``, which has rates of its own."""

    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Take only the first N requests of the trace.")
    ] = None
    scale_lengths: Annotated[
        float, typer.Option("--scale-lengths", help="Multiply every prompt and output length.")
    ] = 1.0
    start: Annotated[
        float, typer.Option(metavar="SECONDS", help="Leave out so much of the trace's beginning.")
    ] = 0.0
    duration: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Take only so much of the trace's time.")
    ] = None
    sample: Annotated[
        float, typer.Option(metavar="SHARE", help="Take each request with this probability.")
    ] = 1.0
    sample_seed: Annotated[
        int, typer.Option("--sample-seed", help="Decides which requests --sample takes.")
    ] = 0
    cut: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Cut longer requests to this length, prompt first."),
    ] = None

    def selection(self) -> Selection:
        """What is taken of any trace.

        Raises:
            TraceError: An option is out of range.
        """
        from kvhouse.replayer.trace_select import Selection

        return Selection(
            start=self.start,
            duration=self.duration,
            sample=self.sample,
            seed=self.sample_seed,
            limit=self.limit,
            scale_lengths=self.scale_lengths,
            max_length=self.cut,
        )

    def read(self, source: str, *, as_json: bool) -> Trace:
        """Read a trace into memory, with a progress bar.

        Args:
            source: As for ``read_trace``.
            as_json: Whether stdout is for JSON alone.

        Raises:
            TraceError: The trace cannot be read or holds no request, or an option is out of range.
        """
        from kvhouse.replayer.generate import most_requests
        from kvhouse.replayer.traces import select_trace

        selection, most = self.selection(), most_requests(source, self.limit)
        with progress("reading the trace", most, as_json=as_json) as on_read:
            return select_trace(source, selection, on_read)


@dataclass(frozen=True, slots=True)
class TraceOptions(PartOptions):
    """And how fast they arrive: of all other commands."""

    scale_rate: Annotated[
        float, typer.Option("--scale-rate", help="Let requests arrive so many times as fast.")
    ] = 1.0

    def selection(self) -> Selection:
        """See ``PartOptions.selection``."""
        return replace(PartOptions.selection(self), scale_rate=self.scale_rate)
