"""The answer in a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvhouse.planner.remedies.prices import standing
from kvhouse.replayer.remedies.figures import Figures
from kvhouse.replayer.remedies.limit import MARGIN, Limit, all_served
from kvhouse.replayer.remedies.report import Row

_WHY_NOT = {
    "arrivals": ": arrivals are the limit",
    "memory": ", though memory is the limit",
    "max-running": ": as many requests run as may run at once",
    "length": ": every request is longer than is allowed",
    "device": ", nor would more memory: the device's speed is the limit",
}

#: What can be known of a remedy's accuracy, the least loss first.
_PRICES = ("unchanged", "known", "unknown", "loses")


def verdict(base: Figures, rows: Sequence[Row], limit: Limit, *, asked: bool) -> str:
    """Which row pays most, or why none does.

    Of rows that are as good (less than 1 % apart, or serving all that comes) the cheapest is named
    first: no pair, and what is sure to cost the least accuracy.

    Args:
        base: What the base comes to.
        rows: Best first.
        limit: What holds the base back.
        asked: Whether there is an SLO.
    """
    helping = [row for row in rows if row.effect == "helps"]
    if not helping:
        return f"None of these helps{_WHY_NOT[limit.name]}."
    here = [row for row in helping if row.figures.devices == base.devices]
    others = [row for row in helping if row.figures.devices > base.devices]

    def serves_all(row: Row) -> bool:
        return all_served(row.figures, limit.offered_per_second, asked=asked)

    best, *equals = _best(here or others, serves_all)
    text = f"{best.name} pays most: {_gain(best, base)}"
    if serves_all(best):
        text += ", and arrivals are the limit then"
    text += "."
    if equals:
        text += f" As good: {', '.join(row.name for row in equals)}."
    if not here:
        return f"Nothing on the same devices helps{_WHY_NOT[limit.name]}. {text}"
    if others:
        more = _best(others, serves_all)[0]
        text += f" Of what takes more devices, {more.name}: {_gain(more, base)}."
    return text


def _best(rows: Sequence[Row], serves_all: Callable[[Row], bool]) -> list[Row]:
    """Those as good as the first, the cheapest first.

    What serves all that comes is as good as anything on as many devices: goodput then differs by
    how soon the last request is done.
    """
    first, *others = rows
    least, devices = first.figures.goodput_per_device * (1 - MARGIN), first.figures.devices
    equal = [
        row
        for row in others
        if row.figures.goodput_per_device >= least
        or (row.figures.devices == devices and serves_all(row) and serves_all(first))
    ]
    return sorted([first, *equal], key=lambda row: (row.pair, _price(row)))


def _price(row: Row) -> int:
    """Nothing lost in accuracy, what is known, what is not, or what is known to lose."""
    return _PRICES.index(standing(row.accuracy))


def compared(rows: Sequence[Row]) -> Iterator[str]:
    """Tensor parallelism beside replicas on the same number of devices, neither in a pair."""
    alone = [row for row in rows if not row.pair]
    ranks = [row for row in alone if row.name.startswith("tensor parallel")]
    replicas = {row.figures.devices: row for row in alone if row.name.startswith("data parallel")}
    for row in sorted(ranks, key=lambda row: row.figures.devices):
        other = replicas.get(row.figures.devices)
        if other:
            both = "; ".join(f"{one.name} {_total(one.figures)}" for one in (row, other))
            yield f"On {row.figures.devices} devices: {both}."


def _total(figures: Figures) -> str:
    return (
        f"{figures.goodput_per_second:,.4g} requests/s, {figures.goodput_per_device:,.4g} a "
        f"device, {figures.in_memory_peak:,} requests in memory"
    )


def _gain(row: Row, base: Figures) -> str:
    share = "" if row.gain is None else f" ({row.gain:+.1%})"
    each = ""
    if row.figures.devices > base.devices:
        each = f", {row.figures.goodput_per_device:,.4g} for each of {row.figures.devices} devices"
    return (
        f"goodput {base.goodput_per_second:,.4g} -> {row.figures.goodput_per_second:,.4g} "
        f"requests/s{share}{each}, requests in memory {base.in_memory_peak:,} -> "
        f"{row.figures.in_memory_peak:,}"
    )
