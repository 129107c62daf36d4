"""Which remedies are worth trying together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from kvhouse.core.policy import PAGED
from kvhouse.planner.remedies.candidate import Candidate
from kvhouse.replayer.remedies.figures import Driven, Figures
from kvhouse.replayer.remedies.limit import MARGIN, Limit, serves_more
from kvhouse.replayer.remedies.report import Effect


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate and what became of it.

    Attributes:
        candidate: The candidate.
        driven: Its replays.
        pair: What it consists of; None for a remedy alone.
    """

    candidate: Candidate
    driven: Driven
    pair: Pair | None = None

    @property
    def figures(self) -> Figures:
        """What it comes to."""
        return self.driven.figures


@dataclass(frozen=True, slots=True)
class Pair:
    """Two remedies that were tried alone, and both as one."""

    first: Tried
    second: Tried
    candidate: Candidate


def effect_of(base: Figures, figures: Figures, limit: Limit, *, asked: bool) -> Effect:
    """What a change does to goodput; nothing helps where arrivals are the limit.

    Args:
        base: Without the change.
        figures: With it.
        limit: What holds the base back.
        asked: Whether there is an SLO.
    """
    if figures.goodput_per_second < base.goodput_per_second * (1 - MARGIN):
        return "worse"
    more = serves_more(base, figures, timed=asked and limit.offered_per_second is not None)
    return "helps" if more and limit.name != "arrivals" else "no difference"


def pairs_of(base: Figures, tried: Sequence[Tried], limit: Limit, *, asked: bool) -> list[Pair]:
    """What to try together: a prefix cache with each offload, then the most promising.

    What needs no further devices goes first, and further devices are taken once. What brings
    paging with it has to help beside paging alone. For the arguments see ``effect_of``.
    """
    paging = next((one for one in tried if one.candidate.fields == {"policy": PAGED}), None)

    def helps(one: Tried) -> bool:
        paged = paging and one is not paging and "policy" in one.candidate.fields
        before = paging.figures if paging and paged else base
        return effect_of(before, one.figures, limit, asked=asked) == "helps"

    found = []
    for one, other in combinations(tried, 2):
        first, second = one.candidate, other.candidate
        kept = "prefix_cache" in first.fields and bool({"host", "nvme"} & second.fields.keys())
        further = first.hardware and second.hardware
        if (kept or (helps(one) and helps(other))) and first.goes_with(second) and not further:
            promise = one.figures.goodput_per_device + other.figures.goodput_per_device
            order = (not kept, first.hardware or second.hardware, -promise)
            found.append((order, Pair(one, other, _joined(first, second))))
    return [pair for _, pair in sorted(found, key=lambda each: each[0])]


def _joined(first: Candidate, second: Candidate) -> Candidate:
    """Both as one, what both bring named once."""
    both = first.joined(second)
    names = dict.fromkeys(" + ".join((first.name, second.name)).split(" + "))
    return replace(both, name=" + ".join(names))


def best_pair(tried: Sequence[Tried]) -> str | None:
    """The pair with the most goodput for each device, where that is more than its parts have.

    Differences that count as none do not count here either.

    Args:
        tried: Best first, which decides between equal ones.
    """
    better = [
        one
        for one in tried
        if one.pair
        and _goodput(one) > (1 + MARGIN) * max(map(_goodput, (one.pair.first, one.pair.second)))
    ]
    return max(better, key=_goodput).candidate.name if better else None


def _goodput(one: Tried) -> float:
    return one.figures.goodput_per_device
