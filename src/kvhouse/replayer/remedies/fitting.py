"""Where the weights leave no memory for KV: what would make the model fit, each replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvhouse.errors import KvhouseError
from kvhouse.planner import Budget, kv_budget
from kvhouse.planner.remedies import Excluded
from kvhouse.planner.remedies.candidate import IDENTICAL, Candidate
from kvhouse.planner.remedies.candidates import (
    RANKS,
    larger_cards,
    narrower_weights,
    tensor_parallel,
)
from kvhouse.replayer.remedies.candidates import case_of, on_ranks
from kvhouse.replayer.remedies.figures import Figures, drive_all
from kvhouse.replayer.remedies.flags import base_flags, extra_flags
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO
from kvhouse.units import bytes_text

#: What the planner assumes where it knows no traffic.
_NO_TRAFFIC = IDENTICAL


@dataclass(frozen=True, slots=True)
class FittingRow:
    """One change with which the weights leave memory for KV, replayed.

    Attributes:
        name: Short, such as ``int4 weights``.
        change: What changes, in words.
        flags: Options of ``kvhouse replay`` that give it, behind those of the base.
        kv_bytes: What is left for keys and values, on each device.
        figures: What the traffic comes to.
        accuracy: What it costs in accuracy.
        latency: What it does to the time of a request.
        needs: What it asks for beside a setting; empty for nothing.
        assumption: What its figures rest on.
    """

    name: str
    change: str
    flags: str
    kv_bytes: int
    figures: Figures
    accuracy: str
    latency: str
    needs: str
    assumption: str


@dataclass(frozen=True, slots=True)
class Fitting:
    """What would make a model fit that does not.

    Attributes:
        verdict: The answer in a sentence.
        partial: Whether it was interrupted before all was replayed.
        weight_bytes: Bytes of the weights, on each device.
        usable_bytes: Bytes that the engine may use of it.
        slo: What requests should meet; None where goodput counts all that finish.
        base_flags: Options of ``kvhouse replay`` that give the base.
        rows: By goodput for each device, then by requests in memory for each device.
        replays: How many replays it took.
        excluded: What does not make it fit, and why.
    """

    verdict: str
    partial: bool
    weight_bytes: int
    usable_bytes: int
    slo: SLO | None
    base_flags: str
    rows: tuple[FittingRow, ...]
    replays: int
    excluded: tuple[Excluded, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same keys, nested, as plain values."""
        return asdict(self)


def unfit(base: Setup) -> Budget | None:
    """The budget of a base whose weights leave no memory for KV; None where there is some."""
    if base.kv_blocks is not None or base.kv_memory is not None:
        return None
    budget = kv_budget(base.rank, base.device, base.weight_dtype, base.utilization)
    return None if budget.kv else budget


def fitting(
    base: Setup,
    budget: Budget,
    *,
    slo: SLO | None = None,
    on_replay: Callable[[int, int], None] | None = None,
) -> Fitting:
    """Replay ``base`` with each change that makes it fit. Ctrl-C ends it with what was done.

    Args:
        base: How the traffic would be served.
        budget: What ``unfit`` gives for it.
        slo: What requests should meet.
        on_replay: Called after each replay with how many are done, and how many there will be.

    Raises:
        KvhouseError: An option is impossible whatever fits.
    """
    found = list(_candidates(base))
    rows: list[FittingRow] = []
    excluded = [one for one in found if isinstance(one, Excluded)]
    candidates = [one for one in found if isinstance(one, Candidate)]
    partial = False
    try:
        for done, candidate in enumerate(candidates, 1):
            try:
                rows.append(_row(base, candidate, slo))
            except KvhouseError as error:
                excluded.append(Excluded(candidate.name, str(error)))
            if on_replay:
                on_replay(done, len(candidates))
    except KeyboardInterrupt:
        partial = True
    rows.sort(key=lambda row: (-row.figures.goodput_per_device, -row.figures.in_memory_peak))
    return Fitting(
        verdict=_verdict(base, budget, rows),
        partial=partial,
        weight_bytes=budget.weights,
        usable_bytes=budget.memory - budget.reserve,
        slo=slo,
        base_flags=base_flags(base),
        rows=tuple(rows),
        replays=len(rows),
        excluded=tuple(excluded),
    )


def _candidates(base: Setup) -> Iterator[Candidate | Excluded]:
    case = case_of(base)
    yield from narrower_weights(case)
    yield from larger_cards(case)
    for ranks in RANKS:
        if ranks > base.tp:
            yield on_ranks(base, tensor_parallel(case, ranks))


def _row(base: Setup, candidate: Candidate, slo: SLO | None) -> FittingRow:
    setup = replace(base, **candidate.fields)
    figures = drive_all((setup,), slo).figures
    left = kv_budget(setup.rank, setup.device, setup.weight_dtype, setup.utilization).kv
    flags = extra_flags(base, setup)
    if setup.device is not base.device:
        flags = f"--device {setup.device.name} {flags}".strip()
    return FittingRow(
        candidate.name,
        candidate.change,
        flags,
        left,
        figures,
        candidate.accuracy,
        candidate.latency,
        candidate.needs,
        candidate.assumption.removeprefix(_NO_TRAFFIC).removeprefix("; "),
    )


def _verdict(base: Setup, budget: Budget, rows: list[FittingRow]) -> str:
    usable = budget.memory - budget.reserve
    what = (
        f"the weights take {bytes_text(budget.weights)} of {bytes_text(usable)} usable on "
        f"{base.device.name}, so it serves nothing"
    )
    if not rows:
        return f"Nothing that was tried makes it fit: {what}."
    names = ", ".join(row.name for row in rows)
    return f"It does not fit: {what}. It fits with: {names}."
