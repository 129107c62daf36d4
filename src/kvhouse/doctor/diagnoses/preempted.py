"""Preemptions: how many, and what computing again costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kvhouse.doctor.diagnoses.base import LITTLE, Diagnosis, Patient, percent, ranked, whole
from kvhouse.doctor.diagnoses.startup import roomier

#: So many preemptions are many where it is not known how many requests there were.
_STORM = 50
#: So many of each request's are, where it is known.
_STORM_SHARE = 0.2


#: What is told of a cost, by its kind and by whether it is known how long it takes.
_CODES = {
    ("counted", True): "recomputed_counted",
    ("counted", False): "recomputed_counted_untimed",
    ("estimated", True): "recomputed_estimated",
    ("estimated", False): "recomputed_estimated_untimed",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What is computed again.

    Attributes:
        tokens: How many tokens.
        kind: Whether the engine counted them, or they are the mean length that was held.
        rate: Tokens a second that prompts were computed at, at least: lines of statistics are means
            over seconds in which other work was done too. None where not known.
        share: The part of all computed tokens that it is; None where not known.
    """

    tokens: int
    kind: Literal["counted", "estimated"]
    rate: float | None
    share: float | None


def preemptions(patient: Patient) -> Iterable[Diagnosis]:
    """Requests lose their KV to others and compute it again."""
    facts = patient.facts
    count = preempted(patient)
    if not count:
        return
    fits = facts.number("max_concurrency")
    limit = max(1, int(fits)) if fits else None
    remedies = [*roomier(patient)]
    if limit is not None:
        remedies += patient.change("fewer_requests", "seqs", LITTLE, limit)
    remedies += patient.change("careful", "careful", LITTLE, "1.3")
    storm = is_storm(patient)
    yield Diagnosis(
        "preemption_storm" if storm else "preemptions",
        "warning" if storm else "note",
        (("count", whole(count)),),
        patient.evidence(
            *("preemptions", "preempted", "retracted", "preempted_total", "usage_pct"),
            *("usage_share", "running"),
        ),
        ranked(remedies),
    )
    found = cost(patient, count)
    if found is not None:
        yield _told(patient, found)


def is_storm(patient: Patient) -> bool:
    """Whether requests are preempted so often that it costs something."""
    count, finished = preempted(patient), patient.facts.number("finished_total")
    return bool(count) and count >= (_STORM_SHARE * finished if finished else _STORM)


def preempted(patient: Patient) -> int:
    """How many preemptions there were.

    V0 of vLLM counts them from the start on, V1 and SGLang those since the line before.
    """
    series = patient.facts.series
    total = patient.facts.count("preempted_total")
    if total is not None:
        return total
    counted = series.get("preemptions")
    if counted is not None:
        return int(counted.most)
    found = series.get("preempted") or series.get("retracted")
    return 0 if found is None else int(found.total)


def cost(patient: Patient, count: int) -> Cost | None:
    """The tokens that are computed again, as counted or else as many as a request held."""
    facts = patient.facts
    given = [facts.count(name) for name in ("retracted_input_total", "retracted_output_total")]
    counted = sum(part or 0 for part in given)
    tokens = counted or int(count * (_held(patient) or 0))
    if not tokens:
        return None
    rates = facts.series.get("prompt_rate")
    rate = rates.most if rates is not None and rates.most else None
    computed = (facts.number("prompt_total") or 0) - (facts.number("hit_total") or 0)
    share = tokens / (computed + tokens) if computed > 0 else None
    return Cost(tokens, "counted" if counted else "estimated", rate, share)


def _held(patient: Patient) -> float | None:
    """Tokens that a running request held, in the mean over all lines; else half of its answer."""
    facts = patient.facts
    running, pool = facts.series.get("running"), facts.count("kv_tokens", "max_total_num_tokens")
    percents, shares = facts.series.get("usage_pct"), facts.series.get("usage_share")
    used = percents.mean / 100 if percents is not None else shares.mean if shares else None
    if running is not None and running.mean and pool and used:
        return used * pool / running.mean
    prompt, output = facts.number("prompt_length_mean"), facts.number("output_length_mean")
    return None if prompt is None or output is None else prompt + output / 2


def _told(patient: Patient, found: Cost) -> Diagnosis:
    code = _CODES[found.kind, found.rate is not None]
    seconds = found.tokens / found.rate if found.rate else 0.0
    return Diagnosis(
        code,
        "note",
        (
            ("tokens", whole(found.tokens)),
            ("seconds", f"{seconds:,.1f}"),
            ("rate", whole(found.rate or 0)),
            ("share", "?" if found.share is None else percent(found.share)),
        ),
        patient.evidence(
            *("retracted_input_total", "preempted_total", "preempted", "preemptions", "retracted"),
            *("prompt_rate", "kv_tokens"),
        ),
    )
