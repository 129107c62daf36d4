"""Ways to serve more requests at once, each measured by the same count as the plan itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

from kvhouse.costs import Roofline
from kvhouse.errors import KvhouseError
from kvhouse.planner.case import Case, Outcome
from kvhouse.planner.remedies.candidate import Candidate, Excluded, Options
from kvhouse.planner.remedies.candidates import candidates
from kvhouse.planner.remedies.offload import OffloadBreakEven, offload_break_even

Basis = Literal["exact", "modelled", "estimated"]


@dataclass(frozen=True, slots=True)
class Remedy:
    """What one change does. Requests and bytes are counted, token rates are ceilings.

    Attributes:
        name: Short, such as ``int8 KV`` or ``tensor parallel 2``.
        change: What changes, in words.
        bytes_saved: Fewer bytes that a request holds by itself on one device; negative for more.
        requests_before: Requests that fit without it.
        requests_after: Requests that fit with it.
        gained: The difference; negative where it loses some, and ``assumption`` says why.
        tokens_per_second_before: Ceiling of decoding all requests that fit, without it.
        tokens_per_second_after: The same with it.
        accuracy: What it costs in accuracy: a figure with its source, or that it is unknown.
        latency: What it does to the time of a request.
        needs: What it asks for beside a setting; empty for nothing.
        basis: What ``requests_after`` is: exact, or resting on something modelled or estimated.
        assumption: What the figures rest on.
        hardware: Whether it takes other or further devices.
        missing_bytes: What the weights and a given KV memory still lack to fit with it, on one
            device; 0 where they fit.
    """

    name: str
    change: str
    bytes_saved: int
    requests_before: int
    requests_after: int
    gained: int
    tokens_per_second_before: float
    tokens_per_second_after: float
    accuracy: str
    latency: str
    needs: str
    basis: Basis
    assumption: str
    hardware: bool
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class Remedies:
    """The remedies of a case.

    Attributes:
        policy: The policy that they are measured against.
        context: Tokens that each request holds.
        requests: Requests that fit as it is.
        tokens_per_second: Their ceiling; 0 without any.
        ranked: Those with which weights and KV memory fit come first; then by requests gained,
            then by token rate.
        combination: Of all pairs that need no other hardware the one that fits the most requests,
            where these are more than with either alone; only one with which weights and KV memory
            fit.
        model_choice: What a model with 8 KV heads would save, where this one has as many as
            query heads: another model, so not ranked.
        offload: Where loading from the host's memory beats recomputing; it makes room for more
            requests at rest, not for more at once. None where ``excluded`` says why.
        excluded: What does not apply.
    """

    policy: str
    context: int
    requests: int
    tokens_per_second: float
    ranked: tuple[Remedy, ...]
    combination: Remedy | None
    model_choice: Remedy | None
    offload: OffloadBreakEven | None
    excluded: tuple[Excluded, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same keys, as plain values."""
        return asdict(self)


def remedies(
    case: Case,
    *,
    shared_tokens: int | None = None,
    hit_share: float | None = None,
    shorter: int | None = None,
    lengths: Sequence[int] = (),
    host_link: float | None = None,
    link_latency: float = 0.0,
) -> Remedies:
    """Try every remedy on a case.

    Args:
        case: How the model is served now.
        shared_tokens: Tokens of one prefix that all requests begin with.
        hit_share: Share of prompt tokens that a prefix cache was measured to hit, in place of
            ``shared_tokens``; taken as one prefix that all requests share.
        shorter: A max_length to try.
        lengths: Lengths in tokens of real requests; without ``shorter``, their 99th percentile is
            tried.
        host_link: Bytes per second from the host's memory; by default the device's.
        link_latency: Seconds that a load over it takes beside its bytes.

    Raises:
        KvhouseError: The case or an option is impossible; a remedy that is not is in
            ``Remedies.excluded``.
    """
    before = case.outcome()
    options = Options(shared_tokens, hit_share, shorter, tuple(lengths))
    measured, excluded = _tried(case, before, options)
    tried = sorted(
        (pair for pair in measured if not pair[0].other_model), key=lambda pair: _rank(pair[1])
    )
    offload: OffloadBreakEven | None = None
    try:
        offload = _offload(case, host_link, link_latency)
    except KvhouseError as error:
        excluded.append(Excluded("offload", str(error)))
    return Remedies(
        policy=case.policy,
        context=case.context,
        requests=before.requests,
        tokens_per_second=before.tokens_per_second,
        ranked=tuple(remedy for _, remedy in tried if _admits(remedy)),
        combination=_combination(case, before, tried),
        model_choice=next((remedy for one, remedy in measured if one.other_model), None),
        offload=offload,
        excluded=tuple(excluded),
    )


def _tried(
    case: Case, before: Outcome, options: Options
) -> tuple[list[tuple[Candidate, Remedy]], list[Excluded]]:
    """Every candidate that is possible with what it does, and what is none and why."""
    measured: list[tuple[Candidate, Remedy]] = []
    excluded: list[Excluded] = []
    for candidate in candidates(case, options):
        if isinstance(candidate, Excluded):
            excluded.append(candidate)
            continue
        try:
            remedy = _measure(case, before, candidate)
        except KvhouseError as error:
            excluded.append(Excluded(candidate.name, str(error)))
            continue
        if not _admits(remedy):  # alone: with another one it may
            excluded.append(Excluded(candidate.name, "alone it lets not one request in"))
        measured.append((candidate, remedy))
    return measured, excluded


def _admits(remedy: Remedy) -> bool:
    """Whether any request fits, with it or without."""
    return bool(remedy.requests_before or remedy.requests_after)


def _rank(remedy: Remedy) -> tuple[bool, int, float]:
    return remedy.missing_bytes > 0, -remedy.gained, -remedy.tokens_per_second_after


def _served(remedy: Remedy) -> int:
    """Requests that fit, if weights and KV memory do."""
    return 0 if remedy.missing_bytes else remedy.requests_after


def _measure(case: Case, before: Outcome, candidate: Candidate) -> Remedy:
    """The case with the change, against the case without it."""
    after = candidate.apply(case).outcome()
    return Remedy(
        name=candidate.name,
        change=candidate.change,
        bytes_saved=before.held_bytes - after.held_bytes,
        requests_before=before.requests,
        requests_after=after.requests,
        gained=after.requests - before.requests,
        tokens_per_second_before=before.tokens_per_second,
        tokens_per_second_after=after.tokens_per_second,
        accuracy=candidate.accuracy,
        latency=candidate.latency,
        needs=candidate.needs,
        basis=candidate.basis,
        assumption=candidate.assumption,
        hardware=candidate.hardware,
        missing_bytes=after.missing_bytes,
    )


def _combination(
    case: Case, before: Outcome, tried: list[tuple[Candidate, Remedy]]
) -> Remedy | None:
    """Of all pairs that need no other hardware the best, where it is better than either alone."""
    pairs = combinations([pair for pair in tried if not pair[0].hardware], 2)
    better = []
    for (first, one), (second, other) in pairs:
        if first.goes_with(second):
            both = _measure(case, before, first.joined(second))
            if _served(both) > max(_served(one), _served(other)):
                better.append(both)
    return min(better, key=_rank, default=None)


def _offload(case: Case, link: float | None, latency: float) -> OffloadBreakEven:
    """Each rank loads its own part over a link of its own."""
    roofline = Roofline(case.rank(), case.layout(), case.device, case.weight_dtype)
    rate = case.device.link("host") if link is None else link
    return offload_break_even(roofline, rate, case.max_length, latency)
