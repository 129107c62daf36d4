"""What goes wrong while a server works: preemptions, no hits, an idle pool."""

from __future__ import annotations

from collections.abc import Iterable

from kvhouse.doctor.diagnoses.base import LITTLE, NONE, Diagnosis, Patient, percent, ranked, whole
from kvhouse.doctor.diagnoses.startup import narrower, wider
from kvhouse.doctor.facts import Series

#: vLLM's V0 engine writes a line for every fiftieth preemption, SGLang one for each.
_STORM = 50
#: So many lines of statistics before their figures are believed.
_ENOUGH = 10


def preemptions(patient: Patient) -> Iterable[Diagnosis]:
    """Requests lose their KV to others and compute it again."""
    facts = patient.facts
    count, lines = _preempted(patient)
    if not count:
        return
    fits = facts.number("max_concurrency")
    limit = max(1, int(fits)) if fits else None
    remedies = [*narrower(patient), *wider(patient)]
    if limit is not None:
        remedies += patient.change("fewer_requests", "seqs", LITTLE, limit)
    remedies += patient.change("careful", "careful", LITTLE, "1.3")
    share = facts.number("gpu_memory_utilization")
    if share is not None and share < 0.93:
        remedies += patient.change("raise_share", "utilization", LITTLE, f"{share + 0.03:.2f}")
    storm = count >= _STORM
    yield Diagnosis(
        "preemption_storm" if storm else "preemptions",
        "warning" if storm else "note",
        (("count", whole(count)), ("lines", whole(lines))),
        patient.evidence("preemptions", "retracted", "usage_pct", "usage_share", "running"),
        ranked(remedies),
    )


def _preempted(patient: Patient) -> tuple[int, int]:
    """Preemptions, and the lines that tell of them."""
    counted = patient.facts.series.get("preemptions")
    if counted is not None:
        return int(counted.most), counted.count
    retracted = patient.facts.series.get("retracted")
    return (int(retracted.total), retracted.count) if retracted is not None else (0, 0)


def no_hits(patient: Patient) -> Iterable[Diagnosis]:
    """Prefix caching is on and nothing is ever found."""
    facts = patient.facts
    hits, running = facts.series.get("hit_pct"), facts.series.get("running")
    cached, new = facts.series.get("cached_tokens"), facts.series.get("new_tokens")
    none = hits is not None and not hits.most and hits.count >= _ENOUGH
    none = none and running is not None and running.most > 0
    if cached is not None and new is not None:
        none = not cached.total and new.count >= _ENOUGH and not facts.word("disable_radix_cache")
    if not none or facts.values().get("enable_prefix_caching") is False:
        return
    if facts.values().get("disable_radix_cache") is True:
        return
    block = facts.count("attn_block_size")
    yield Diagnosis(
        "no_hits" if block is None else "no_hits_block",
        "note",
        (("block", "16" if block is None else whole(block)),),
        patient.evidence("hit_pct", "cached_tokens", "attn_block_size", "enable_prefix_caching"),
    )


def idle(patient: Patient) -> Iterable[Diagnosis]:
    """The pool is far from full and nobody waits: more memory would change nothing."""
    facts = patient.facts
    waiting, running = facts.series.get("waiting"), facts.series.get("running")
    full = _most_full(patient)
    if full is None or waiting is None or running is None or running.count < _ENOUGH:
        return
    if full >= 0.5 or waiting.most or not running.most:
        return
    yield Diagnosis(
        "arrivals",
        "note",
        (("full", percent(full)), ("running", whole(running.most))),
        patient.evidence("usage_pct", "usage_share", "running", "waiting"),
    )


def capped(patient: Patient) -> Iterable[Diagnosis]:
    """Requests wait although the pool has room: something else limits the batch."""
    facts = patient.facts
    waiting, running = facts.series.get("waiting"), facts.series.get("running")
    full = _most_full(patient)
    if full is None or waiting is None or running is None or full >= 0.7 or not waiting.most:
        return
    limit = facts.count("max_num_seqs", "max_running_requests")
    if not _steady(waiting):
        return
    more = int(running.most / max(full, 0.01) * 0.9)
    yield Diagnosis(
        "capped",
        "warning",
        (
            ("full", percent(full)),
            ("running", whole(running.most)),
            ("waiting", whole(waiting.most)),
            ("limit", "?" if limit is None else whole(limit)),
        ),
        patient.evidence(
            "usage_pct", "usage_share", "running", "waiting", "max_num_seqs", "max_running_requests"
        ),
        tuple(patient.change("more_requests", "seqs", NONE, more)),
    )


def _steady(waiting: Series) -> bool:
    """Whether requests wait most of the time and not in a burst."""
    return waiting.count >= _ENOUGH and waiting.mean >= 1


def _most_full(patient: Patient) -> float | None:
    usage = patient.facts.series.get("usage_pct")
    if usage is not None:
        return usage.most / 100
    share = patient.facts.series.get("usage_share")
    return None if share is None else share.most
