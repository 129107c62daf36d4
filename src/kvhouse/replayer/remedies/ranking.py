"""Every remedy replayed alone, those that help in pairs, and all of them ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvhouse.errors import KvhouseError
from kvhouse.planner.remedies import Excluded
from kvhouse.planner.remedies.candidate import Candidate
from kvhouse.replayer.remedies.apply import applied
from kvhouse.replayer.remedies.candidates import candidates
from kvhouse.replayer.remedies.figures import Driven, drive_all
from kvhouse.replayer.remedies.flags import base_flags, extra_flags
from kvhouse.replayer.remedies.limit import Limit, limit_of, without_bounds
from kvhouse.replayer.remedies.measured import measured
from kvhouse.replayer.remedies.pairs import Pair, Tried, best_pair, effect_of, pairs_of
from kvhouse.replayer.remedies.report import Report, Row
from kvhouse.replayer.remedies.tries import Tries
from kvhouse.replayer.remedies.verdict import compared, verdict
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO


def remedies(
    base: Setup,
    *,
    slo: SLO | None = None,
    tries: Tries | None = None,
    on_replay: Callable[[int, int], None] | None = None,
    on_ended: Callable[[object], None] | None = None,
) -> Report:
    """Replay ``base``, each remedy alone, and pairs of those that help.

    A pair is tried where both help alone and can be made together, further devices at most once;
    and a prefix cache with each offload in any case, since what a tier keeps of finished requests
    is found by a prefix cache alone. Ctrl-C, once base and limit are known, ends it with what was
    replayed whole.

    Args:
        base: How the traffic is served now.
        slo: What requests should meet; without one, goodput counts all that finish.
        tries: Figures of the remedies.
        on_replay: Called at first and after each replay with how many are done, and how many there
            will be as far as is known.
        on_ended: Called with the record of each request that a replay has ended.

    Raises:
        KvhouseError: The base or an option is impossible; a remedy that is not is in
            ``Report.excluded``.
    """
    tries = tries or Tries()
    work = _Work(base, slo, on_replay or _unseen, on_ended)
    alone = work.sift(candidates(base, tries))
    driven, limit = work.begin(alone)
    pairs: list[Pair] = []
    partial = False
    try:
        for one in alone:
            work.attempt(one)
        pairs = pairs_of(driven.figures, work.tried, limit, asked=slo is not None)
        work.attempt_pairs(pairs[: tries.pairs])
    except KeyboardInterrupt:
        partial = True
    tried = sorted(work.tried, key=_by_goodput)
    rows = _rows(driven, tried, limit)
    return Report(
        verdict=verdict(driven.figures, rows, limit, asked=slo is not None, partial=partial),
        partial=partial,
        compared=tuple(compared(rows)),
        slo=slo,
        base_flags=base_flags(base),
        base=driven.figures,
        base_result=driven.results[0],
        limit=limit,
        rows=rows,
        best_pair=best_pair(tried),
        pairs_tried=sum(row.pair for row in rows),
        pairs_left=len(pairs) - work.pairs_begun,
        replays=work.done,
        excluded=tuple(work.excluded),
    )


class _Work:
    """Replays that are made and counted."""

    def __init__(
        self,
        base: Setup,
        slo: SLO | None,
        on_replay: Callable[[int, int], None],
        on_ended: Callable[[object], None] | None,
    ) -> None:
        self.excluded: list[Excluded] = []
        self.tried: list[Tried] = []
        self.pairs_begun = 0
        self.done = 0
        self._base, self._slo = base, slo
        self._on_replay, self._on_ended = on_replay, on_ended
        self._expected = 0

    def sift(self, found: Iterable[Candidate | Excluded]) -> list[Candidate]:
        """The candidates; what is none is noted."""
        candidates = []
        for one in found:
            if isinstance(one, Excluded):
                self.excluded.append(one)
            else:
                candidates.append(one)
        return candidates

    def begin(self, alone: Sequence[Candidate]) -> tuple[Driven, Limit]:
        """Replay the base, and once more with memory enough."""
        unbounded = without_bounds(self._base)
        self._expected = 1 + (unbounded is not None) + sum(map(_replays, alone))
        self._on_replay(0, self._expected)
        driven = self._drive((self._base,))
        if unbounded is None:
            return driven, limit_of(driven, None, "")
        enough = self._drive((unbounded,))
        return driven, limit_of(driven, enough, extra_flags(self._base, unbounded))

    def attempt(self, candidate: Candidate, pair: Pair | None = None) -> None:
        """Replay a candidate; what is impossible is noted with the reason."""
        try:
            driven = drive_all(applied(self._base, candidate.fields), self._slo, self._on_ended)
        except KvhouseError as error:
            self.excluded.append(Excluded(candidate.name, str(error)))
            self._expected -= _replays(candidate)
            return
        self.tried.append(Tried(candidate, driven, pair))
        self._count(len(driven.setups))

    def attempt_pairs(self, pairs: Sequence[Pair]) -> None:
        """Replay the candidates of pairs."""
        self._expected += sum(_replays(pair.candidate) for pair in pairs)
        for pair in pairs:
            self.pairs_begun += 1
            self.attempt(pair.candidate, pair)

    def _drive(self, setups: Sequence[Setup]) -> Driven:
        driven = drive_all(setups, self._slo, self._on_ended)
        self._count(len(setups))
        return driven

    def _count(self, replays: int) -> None:
        self.done += replays
        self._on_replay(self.done, self._expected)


def _unseen(_done: int, _expected: int) -> None:
    """What is called when nobody asked to be."""


def _replays(candidate: Candidate) -> int:
    count: int = candidate.fields.get("replicas", 1)
    return count


def _rows(base: Driven, tried: Sequence[Tried], limit: Limit) -> tuple[Row, ...]:
    ranks = {id(one): rank for rank, one in enumerate(sorted(tried, key=_by_memory), 1)}
    return tuple(_row(base, one, limit, ranks[id(one)]) for one in tried)


def _by_goodput(one: Tried) -> tuple[float, float, int]:
    """Of two that are alike, what changes less goes first."""
    return -one.figures.goodput_per_device, _by_memory(one), len(one.candidate.fields)


def _by_memory(one: Tried) -> float:
    return -one.figures.in_memory_peak / one.figures.devices


def _row(base: Driven, one: Tried, limit: Limit, memory_rank: int) -> Row:
    candidate, driven = one.candidate, one.driven
    (setup,), before, after = base.setups, base.figures, one.figures
    return Row(
        name=candidate.name,
        change=candidate.change,
        pair=one.pair is not None,
        flags=tuple(extra_flags(setup, replica) for replica in driven.setups),
        effect=effect_of(before, after, limit, asked=base.results[0].goodput is not None),
        gain=_gain(before.goodput_per_second, after.goodput_per_second),
        gain_per_device=_gain(before.goodput_per_device, after.goodput_per_device),
        memory_rank=memory_rank,
        figures=after,
        accuracy=candidate.accuracy,
        latency=candidate.latency,
        needs=candidate.needs,
        assumption=candidate.assumption,
        measured=tuple(measured(driven, before)),
        results=driven.results,
    )


def _gain(before: float, after: float) -> float | None:
    return after / before - 1 if before else None
