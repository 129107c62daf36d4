"""The ranking, its rows and its verdict, with stable keys."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from kvhouse.planner.remedies import Excluded
from kvhouse.replayer.remedies.figures import Figures
from kvhouse.replayer.remedies.limit import Limit
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.slo import SLO

Effect = Literal["helps", "no difference", "worse"]

#: From this gain on it is written as a factor, which is easier to read.
_TENFOLD = 9.0


def gain_text(gain: float) -> str:
    """A gain for people: ``+42.0%``, and ``18.6x`` where it is ten times as much or more."""
    return f"{gain:+.1%}" if gain < _TENFOLD else f"{1 + gain:,.3g}x"


@dataclass(frozen=True, slots=True)
class Row:
    """One remedy, or a pair of them, replayed.

    Attributes:
        name: Short, such as ``int8 KV`` or ``tensor parallel 2``.
        change: What changes, in words.
        pair: Whether it is two remedies.
        flags: Options of ``kvhouse replay`` that give it, behind those of the base: one text for
            each replica.
        effect: What it does to goodput, all devices together, beyond 1 %; where arrivals are the
            limit nothing can help, and of requests that come over time more must meet the SLO.
        gain: Goodput over the base's, less 1; None where the base has none.
        gain_per_device: The same for each device.
        memory_rank: Its place by requests in memory for each device, from 1.
        figures: What it comes to.
        accuracy: What it costs in accuracy: a figure with its source, or that it is unknown.
        latency: What it does to the time of a request.
        needs: What it asks for beside a setting; empty for nothing.
        assumption: What its figures rest on.
        measured: What was measured in this replay and explains them.
        results: The figures of each replica's replay, as ``replay`` gives them.
    """

    name: str
    change: str
    pair: bool
    flags: tuple[str, ...]
    effect: Effect
    gain: float | None
    gain_per_device: float | None
    memory_rank: int
    figures: Figures
    accuracy: str
    latency: str
    needs: str
    assumption: str
    measured: tuple[str, ...]
    results: tuple[ReplayResult, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Which remedy pays.

    Attributes:
        verdict: The answer in a few sentences.
        partial: Whether it was interrupted before all was replayed.
        compared: Tensor parallelism beside replicas on the same number of devices, in words.
        slo: What requests should meet; None where goodput counts all that finish.
        base_flags: Options of ``kvhouse replay`` that give the base.
        base: What it comes to.
        base_result: Its figures, as ``replay`` gives them.
        limit: What holds it back.
        rows: By goodput for each device, then by requests in memory for each device.
        best_pair: Name of the pair with the highest goodput for each device, where that is more
            than either has alone.
        pairs_tried: How many pairs were replayed.
        pairs_left: How many more would have gone together.
        replays: How many replays it took.
        excluded: What does not apply, and why.
    """

    verdict: str
    partial: bool
    compared: tuple[str, ...]
    slo: SLO | None
    base_flags: str
    base: Figures
    base_result: ReplayResult
    limit: Limit
    rows: tuple[Row, ...]
    best_pair: str | None
    pairs_tried: int
    pairs_left: int
    replays: int
    excluded: tuple[Excluded, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same keys, nested, as plain values."""
        return asdict(self)
