"""The answer in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvhouse.replayer.remedies.figures import Figures
from kvhouse.replayer.remedies.limit import MARGIN, Limit, all_served
from kvhouse.replayer.remedies.report import Row

_NONE = {
    "arrivals": "None of these helps: arrivals are the limit.",
    "memory": "None of these helps, though memory is the limit.",
    "max-running": "None of these helps: as many requests run as may run at once.",
    "length": "None of these helps: every request is longer than is allowed.",
    "device": "None of these helps, nor would more memory: the device's speed is the limit.",
}


def verdict(base: Figures, rows: Sequence[Row], limit: Limit, *, asked: bool) -> str:
    """Which row pays most, or why none does.

    Args:
        base: What the base comes to.
        rows: Best first.
        limit: What holds the base back.
        asked: Whether there is an SLO.
    """
    helping = [row for row in rows if row.effect == "helps"]
    if not helping:
        return _NONE[limit.name]
    here = [row for row in helping if row.figures.devices == base.devices]
    others = [row for row in helping if row.figures.devices > base.devices]
    best = (here or others)[0]
    text = f"{best.name} pays most: {_gain(best, base)}"
    if all_served(best.figures, limit.offered_per_second, asked=asked):
        text += ", and arrivals are the limit then"
    text += "." + _equals(best, here or others)
    if here and others:
        text += f" Of what takes more devices, {others[0].name}: {_gain(others[0], base)}."
    return text


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


def _equals(best: Row, rows: Sequence[Row]) -> str:
    """Others that are as good, within what counts as no difference."""
    least = best.figures.goodput_per_device * (1 - MARGIN)
    names = [
        row.name
        for row in rows
        if row is not best and row.pair <= best.pair and row.figures.goodput_per_device >= least
    ]
    return f" As good within 1 %: {', '.join(names)}." if names else ""


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
