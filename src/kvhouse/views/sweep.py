"""The best cells of a sweep, one row each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console

from kvhouse.replayer.sweep import Row, SweepResult
from kvhouse.replayer.sweep.ranking import ranked
from kvhouse.units import bytes_text, seconds_text
from kvhouse.views.tables import say_wrapped, table

#: What the grid varies: the attribute of a row, its title, and how it is shown.
_AXES: tuple[tuple[str, str, Callable[[object], str]], ...] = (
    ("model", "model", str),
    ("device", "device", str),
    ("policy", "policy", str),
    ("kv_format", "KV", str),
    ("block_size", "block", str),
    ("rate", "rate", lambda rate: "at once" if rate is None else f"{rate:,.4g}"),
)

#: By their heads, the texts of each column.
Columns = dict[str, list[str]]

_MEANINGS = {
    "rate": "requests/s that arrive",
    "goodput": "requests/s that met the SLO",
    "met": "their share",
    "running": "requests at once, mean",
    "lost": "preemptions and rejected requests",
}

#: For what rows are sorted by, the head of its column.
_HEADS = {
    "goodput": "goodput",
    "tokens": "tokens/s",
    "requests": "finished/s",
    "ttft": "TTFT p99",
    "tpot": "TPOT p99",
    "latency": "latency p99",
}

#: Figures that are shown however narrow the screen is.
_LEAST_FIGURES = 2

#: Reasons that are printed in full.
_MOST_REASONS = 5


def show_sweep(console: Console, result: SweepResult, sort: str, top: int) -> None:
    """Print the best ``top`` cells, with the axes that vary, and why others are missing."""
    varied = [axis for axis in _AXES if len({getattr(row, axis[0]) for row in result.rows}) > 1]
    fixed = [axis for axis in _AXES if axis not in varied]
    title = f"{result.requests:,} requests of {result.trace}, best {sort} first (times modelled)"
    if result.partial:
        title = f"PARTIAL, {len(result.rows):,} of {result.cells:,} cells: {title}"
    done = [row for row in ranked(result.rows, sort)[:top] if row.status == "done"]
    if done:
        names = sum(key in ("model", "device", "policy") for key, _, _ in varied)
        columns = {name: [shown(getattr(row, key)) for row in done] for key, name, shown in varied}
        columns |= _fitting(_figures(done, sort), console.width - _width(columns))
        rows = list(zip(*columns.values(), strict=True))
        console.print(table(title, list(columns), rows, names=names))
        same = ", ".join(f"{name} {shown(getattr(done[0], key))}" for key, name, shown in fixed)
        if same:
            say_wrapped(console, f"All with {same}.")
        console.print(_legend(columns))
    else:
        say_wrapped(console, title, "bold")
    count = sum(row.status == "done" for row in result.rows)
    console.print(
        f"{len(done):,} of {count:,} replayed cells are shown; "
        f"{result.reused:,} were in the results file already."
    )
    _show_reasons(console, result)


def _figures(rows: Sequence[Row], sort: str) -> Columns:
    """What is known of the rows, what they are sorted by first; what is nowhere is left out."""
    columns = {
        "goodput": [_number(row.goodput_requests_per_second) for row in rows],
        "tokens/s": [f"{row.output_tokens_per_second or 0:,.0f}" for row in rows],
        "TTFT p99": [_seconds(row.first_token_seconds_p99) for row in rows],
        "TPOT p99": [_seconds(row.per_token_seconds_p99) for row in rows],
        "met": ["-" if row.goodput_share is None else f"{row.goodput_share:.0%}" for row in rows],
        "running": [f"{row.running_mean or 0:,.1f}" for row in rows],
        "lost": [f"{(row.preemptions or 0) + (row.rejected or 0):,}" for row in rows],
        "finished/s": [_number(row.requests_per_second) for row in rows],
        "latency p99": [_seconds(row.latency_seconds_p99) for row in rows],
    }
    names = dict.fromkeys([_HEADS[sort], *columns])
    return {name: columns[name] for name in names if set(columns[name]) - {"-"}}


def _width(columns: Columns) -> int:
    """Characters that columns take side by side."""
    return sum(max(map(len, (name, *texts))) + 3 for name, texts in columns.items())


def _fitting(columns: Columns, room: int) -> Columns:
    """As many of them, the first at least two, as have room."""
    fitting = dict(columns)
    while len(fitting) > _LEAST_FIGURES and _width(fitting) > room:
        fitting.popitem()
    return fitting


def _legend(columns: Columns) -> str:
    """What the heads mean, and that there is more."""
    said = [f"{name}: {meaning}" for name, meaning in _MEANINGS.items() if name in columns]
    return "; ".join([*said, "--json has all figures"]) + "."


def _show_reasons(console: Console, result: SweepResult) -> None:
    """Each reason once, with how many cells have it."""
    reasons = Counter(
        (row.status, row.reason) for row in result.rows if row.status in ("impossible", "failed")
    )
    for (status, reason), count in reasons.most_common(_MOST_REASONS):
        say_wrapped(console, f"{count:,} {status}: {reason}", "yellow")
    if len(reasons) > _MOST_REASONS:
        console.print(f"… and {len(reasons) - _MOST_REASONS:,} more reasons; --json has them all")
    short = [row for row in result.rows if row.missing_bytes]
    if short:
        most = max(row.missing_bytes or 0 for row in short)
        console.print(
            f"{len(short):,} cells have weights and a pool that do not fit the device: up to "
            f"{bytes_text(most)} are missing; replayed anyway.",
            style="yellow",
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds_text(value)
