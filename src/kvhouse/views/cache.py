"""A token's time with and without the KV cache, as a table and as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from kvhouse.units import seconds_text
from kvhouse.views.tables import table

_COLUMNS = (
    "tokens\nso far", "\nwithout", "\nwith", "\nratio", "with,\nfloor",
    "\nprefill", "prefill,\nfloor",
)  # fmt: skip

#: Columns of the longest bar.
_WIDTH = 48


@dataclass(frozen=True, slots=True)
class Point:
    """One token's time at one length; all in seconds.

    Attributes:
        length: Tokens known before it.
        uncached: Without a cache, measured: all of them are computed again.
        decode: With the cache, measured: one token is computed, and reads what all others left.
        decode_floor: The least time for that, by the bytes it reads and this machine's bandwidth.
        prefill: Computing all of the ``length`` tokens for the first time, measured.
        prefill_floor: The least time for that, by its FLOPs and this machine's rate.
    """

    length: int
    uncached: float
    decode: float
    decode_floor: float
    prefill: float
    prefill_floor: float


def show_cache(console: Console, title: str, points: Sequence[Point]) -> None:
    """Print the times, and draw them."""
    console.print(table(title, _COLUMNS, map(_row, points), names=1))
    console.print(
        "Without the cache, each token computes all before it again; with it, decode computes one "
        "token and reads what the others left. Prefill computes a prompt once. Floors are "
        "modelled: decode by the bytes it must read, prefill by its FLOPs, at this machine's "
        f"measured rates.{_outrun(points)}\n",
        soft_wrap=True,
    )
    longest = max(point.uncached for point in points)
    for point in points:
        for name, seconds in (("without", point.uncached), ("with", point.decode)):
            bar = "█" * max(1, round(_WIDTH * seconds / longest))
            length = f"{point.length:,}" if name == "without" else ""
            console.print(f"{length:>6} {name:<8}{bar} {seconds_text(seconds)}", highlight=False)


def _outrun(points: Sequence[Point]) -> str:
    """That times lie below floors, which can only be where the rates are too low."""
    if not any(p.prefill < p.prefill_floor or p.decode < p.decode_floor for p in points):
        return ""
    return (
        " Some times here lie below their floors, so other work slowed this machine down while its "
        "rates were measured."
    )


def _row(point: Point) -> tuple[str, ...]:
    return (
        f"{point.length:,}",
        seconds_text(point.uncached),
        seconds_text(point.decode),
        f"{point.uncached / point.decode:,.1f}",
        seconds_text(point.decode_floor),
        seconds_text(point.prefill),
        seconds_text(point.prefill_floor),
    )
