"""A token's time with and without the KV cache, as a table and as bars."""

from __future__ import annotations

from rich.console import Console

from kvhouse.demo.cache import CacheOutcome, Point
from kvhouse.units import seconds_text
from kvhouse.views.tables import table

_COLUMNS = ("tokens so far", "without", "with", "ratio", "floor", "prefill", "floor")

#: Columns of the longest bar.
_WIDTH = 48


def show_cache(console: Console, outcome: CacheOutcome) -> None:
    """Print the times, and draw them."""
    title = f"One more token of {outcome.setting.model}, measured on {outcome.device}"
    console.print(table(title, _COLUMNS, map(_row, outcome.points), names=1))
    console.print(
        "Without the cache, each token computes all before it again; with it, decode computes one "
        "token and reads what the others left. Prefill computes a prompt once. Floors are "
        "modelled: decode by the bytes it must read, prefill by its FLOPs, at this machine's "
        "measured rates.\n",
        soft_wrap=True,
    )
    longest = max(point.uncached for point in outcome.points)
    for point in outcome.points:
        for name, seconds in (("without", point.uncached), ("with", point.decode)):
            bar = "█" * max(1, round(_WIDTH * seconds / longest))
            length = f"{point.length:,}" if name == "without" else ""
            console.print(f"{length:>6} {name:<8}{bar} {seconds_text(seconds)}", highlight=False)


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
