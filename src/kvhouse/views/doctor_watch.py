"""A server that is watched, on a terminal: one line a poll."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from kvhouse.doctor.metrics.watch import Poll
from kvhouse.doctor.texts import Texts

#: Columns with their widths; Chinese headings take two cells a character.
_COLUMNS = (
    *(("poll", 6), ("running", 12), ("waiting", 9), ("pool", 8)),
    *(("preempted_rate", 13), ("hits", 8), ("prompt_rate", 12), ("generated_rate", 13)),
)
_NOT_KNOWN = "–"


def show_poll_head(console: Console, texts: Texts) -> None:
    """Print the headings."""
    _print(console, [texts.say(f"watch_{name}") for name, _ in _COLUMNS], "bold")


def show_poll(console: Console, poll: Poll) -> None:
    """Print one poll, or why it has no figures."""
    if poll.problem:
        console.print(Text(f"{poll.number:>6}  {poll.problem}", "red"), soft_wrap=True)
        return
    gauges = poll.gauges
    _print(
        console,
        [
            f"{poll.number}",
            _running(gauges.get("running"), poll.fits),
            _count(gauges.get("waiting")),
            _share(gauges.get("usage_share")),
            _rate(poll.rate("preempted_total"), 2),
            _share(poll.hit_rate),
            _rate(poll.rate("prompt_total"), 0),
            _rate(poll.rate("generated_total"), 0),
        ],
        "yellow" if poll.rate("preempted_total") else "",
    )


def _print(console: Console, cells: list[str], style: str = "") -> None:
    padded = [
        " " * max(1, width - cell_len(cell)) + cell
        for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
    ]
    console.print(Text("".join(padded), style), soft_wrap=True, highlight=False)


def _count(value: float | None) -> str:
    return _NOT_KNOWN if value is None else f"{value:,.0f}"


def _running(value: float | None, fits: float | None) -> str:
    """Requests that run, of those of full length that fit."""
    return _count(value) if fits is None else f"{_count(value)}/{fits:,.1f}"


def _share(value: float | None) -> str:
    return _NOT_KNOWN if value is None else f"{value:.1%}"


def _rate(value: float | None, decimals: int) -> str:
    return _NOT_KNOWN if value is None else f"{value:,.{decimals}f}"
