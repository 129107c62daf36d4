"""How long things take: a bar on a terminal, and Ctrl-C that leaves what was done."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

import typer

from kvhouse.cli.output import warn
from kvhouse.units import seconds_text

if TYPE_CHECKING:
    from kvhouse.replayer import ReplayResult, Stop

#: The exit code after Ctrl-C.
INTERRUPTED = 130

#: Seconds that must pass before there is a bar.
PATIENCE = 1.0

#: Seconds between two looks at the bar.
_REFRESH = 0.25


class Counter:
    """Counts calls; all else is done elsewhere, since there may be many thousand a second.

    Attributes:
        done: Calls so far.
        total: How many there will be; None where nobody knows. It may be set later.
    """

    def __init__(self, total: int | None) -> None:
        self.done, self.total = 0, total

    def __call__(self, _: object) -> None:
        """Count one more."""
        self.done += 1


@contextmanager
def progress(
    label: str, total: int | None, *, unit: str = "requests", as_json: bool = False
) -> Iterator[Counter]:
    """A progress bar on stderr while the block runs; call what it yields once for each item.

    It is for people: there is none where stderr is not a terminal, none beside JSON in a pipe,
    and none in the first second.

    Args:
        label: What is done.
        total: See ``Counter``.
        unit: What an item is.
        as_json: Whether stdout is for JSON alone.
    """
    counter, ended = Counter(total), Event()
    if not sys.stderr.isatty() or (as_json and _into_a_pipe()):
        yield counter
        return
    thread = Thread(target=_show, args=(label, unit, counter, ended), daemon=True)
    thread.start()
    try:
        yield counter
    finally:
        ended.set()
        thread.join()


def _into_a_pipe() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:  # a stdout that is no file
        return False


def _show(label: str, unit: str, counter: Counter, ended: Event) -> None:
    """Look at the counter now and then until the end."""
    begun = monotonic()
    if ended.wait(PATIENCE):
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        *([TimeRemainingColumn(), TextColumn("left")] if counter.total else [TimeElapsedColumn()]),
    ]

    def rate() -> str:
        value = counter.done / (monotonic() - begun)
        return f"{value:,.0f} {unit}/s" if value >= 100 else f"{value:.3g} {unit}/s"

    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=counter.total, completed=counter.done, rate=rate())
        while not ended.wait(_REFRESH):
            bar.update(task, total=counter.total, completed=counter.done, rate=rate(), refresh=True)


@contextmanager
def interruptible() -> Iterator[Stop]:
    """Let the first Ctrl-C ask the drive in the block to stop; a second one ends it at once."""
    from kvhouse.replayer import Stop

    stop = Stop()
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):  # whoever started us wants no Ctrl-C to reach us
        yield stop
        return

    def ask(_number: int, _frame: object) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def leave_if_partial(results: Sequence[ReplayResult], drives: int) -> None:
    """Say how far the last replay came, and leave as after Ctrl-C, where not all was done."""
    last = results[-1]
    if not last.partial and len(results) == drives:
        return
    requests = last.scenario["requests"]
    leave_partial(
        f"replay {len(results)} of {drives} ended early with {last.finished:,} of "
        f"{requests:,} requests finished, {seconds_text(last.makespan_seconds)} of "
        f"{last.timing} time"
    )


def leave_partial(how_far: str) -> NoReturn:
    """Say how far a result goes that was ended early, and leave as after Ctrl-C."""
    warn(f"partial: {how_far}")
    raise typer.Exit(INTERRUPTED)
