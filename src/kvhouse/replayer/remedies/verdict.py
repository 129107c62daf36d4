"""The answer in a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvhouse.planner.remedies.prices import standing
from kvhouse.replayer.remedies.figures import Figures
from kvhouse.replayer.remedies.limit import MARGIN, Limit, all_served
from kvhouse.replayer.remedies.report import Row, gain_text

_WHY_NOT = {
    "arrivals": ": arrivals are the limit",
    "memory": ", though memory is the limit",
    "max-running": ": as many requests run as may run at once",
    "length": ": every request is longer than is allowed",
    "device": ", nor would more memory: the device's speed is the limit",
}

#: What can be known of a remedy's accuracy, the least loss first.
_PRICES = ("unchanged", "known", "unknown", "loses")
#: The last of these with which accuracy is known to stay.
_KEPT = _PRICES.index("known")


def verdict(
    base: Figures, rows: Sequence[Row], limit: Limit, *, asked: bool, partial: bool = False
) -> str:
    """Which row pays most, or why none does.

    Of rows that are as good (less than 1 % apart, or serving all that comes) the cheapest is named
    first: no pair, and what is sure to cost the least accuracy. Where the first may lose accuracy,
    the best that is known to keep it is named as well.

    Args:
        base: What the base comes to.
        rows: Best first.
        limit: What holds the base back.
        asked: Whether there is an SLO.
        partial: Whether more would have been replayed.
    """
    if partial and not rows:
        return "No remedy was replayed yet."
    text = _answer(base, rows, limit, asked=asked)
    return f"As far as it was replayed: {text}" if partial else text


def _answer(base: Figures, rows: Sequence[Row], limit: Limit, *, asked: bool) -> str:
    helping = [row for row in rows if row.effect == "helps"]
    if not helping:
        return f"None of these helps{_WHY_NOT[limit.name]}."
    here = [row for row in helping if row.figures.devices == base.devices]
    others = [row for row in helping if row.figures.devices > base.devices]

    def serves_all(row: Row) -> bool:
        return all_served(row.figures, limit.offered_per_second, asked=asked)

    def gained(row: Row) -> str:
        return f"{row.name}: {_gain(row, base, asked=asked)}"

    best, *equals = _best(here or others, serves_all)
    text = f"{best.name} pays most: {_gain(best, base, asked=asked)}"
    if serves_all(best):
        text += ", and arrivals are the limit then"
    text += "."
    if equals:
        text += f" As good: {', '.join(row.name for row in equals)}."
    kept = [row for row in here or others if _price(row) <= _KEPT]
    if kept and _price(best) > _KEPT:
        text += f" Of what is known to keep accuracy, {gained(_best(kept, serves_all)[0])}."
    if not here:
        return f"Nothing on the same devices helps{_WHY_NOT[limit.name]}. {text}"
    if limit.beyond == "device" and limit.unbounded and limit.offered_per_second is not None:
        share = f"{limit.unbounded.in_time_share:.1%} {'meet the SLO' if asked else 'are served'}"
        text += f" With memory enough for all {share}, and the device's speed is the limit."
    if others:
        text += f" Of what takes more devices, {gained(_best(others, serves_all)[0])}."
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


def _gain(row: Row, base: Figures, *, asked: bool) -> str:
    before, after = base, row.figures
    share = "" if row.gain is None else f" ({gain_text(row.gain)})"
    parts = [
        f"goodput {before.goodput_per_second:,.4g} -> {after.goodput_per_second:,.4g} "
        f"requests/s{share}"
    ]
    if after.devices > before.devices:
        parts.append(f"{after.goodput_per_device:,.4g} for each of {after.devices} devices")
    if asked:
        parts.append(f"{before.in_time_share:.1%} -> {after.in_time_share:.1%} meet the SLO")
    parts.append(f"requests in memory {before.in_memory_peak:,} -> {after.in_memory_peak:,}")
    return ", ".join(parts)
