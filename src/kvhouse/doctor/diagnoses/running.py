"""What limits the batch while a server works: arrivals, the pool, or a cap that is no memory."""

from __future__ import annotations

from collections.abc import Iterable

from kvhouse.doctor.diagnoses.base import NONE, Diagnosis, Patient, percent, ranked, whole
from kvhouse.doctor.diagnoses.preempted import is_storm
from kvhouse.doctor.diagnoses.startup import roomier
from kvhouse.doctor.facts import Series

#: So many lines of statistics before their figures are believed.
_ENOUGH = 10
#: Where requests waited no longer than this in the mean, nothing held them up, in seconds.
_NO_QUEUE = 0.05
#: A pool of which so much is used at most, and in the mean, has no room for one more request.
_FULL, _FULL_MEAN = 0.9, 0.8


def idle(patient: Patient) -> Iterable[Diagnosis]:
    """The pool is far from full and nobody waits: more memory would change nothing."""
    facts = patient.facts
    waiting, running = facts.series.get("waiting"), facts.series.get("running")
    full = _most_full(patient)
    if full is None or waiting is None or running is None:
        return
    queued = facts.number("queue_seconds_mean")
    if running.count < _ENOUGH and (queued is None or queued > _NO_QUEUE):
        return
    if full >= 0.5 or waiting.most or not running.most:
        return
    yield Diagnosis(
        "arrivals",
        "note",
        (("full", percent(full)), ("running", whole(running.most))),
        patient.evidence("usage_pct", "usage_share", "running", "waiting", "queue_seconds_mean"),
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


def full(patient: Patient) -> Iterable[Diagnosis]:
    """The pool is full and requests wait for memory; a storm of preemptions says so by itself."""
    facts = patient.facts
    waiting, running = facts.series.get("waiting"), facts.series.get("running")
    most, mean = _most_full(patient), _mean_full(patient)
    if most is None or mean is None or waiting is None or running is None or is_storm(patient):
        return
    # A scrape is what is so now, and there may be one only.
    now = patient.log.source == "metrics" and waiting.count < _ENOUGH and waiting.last >= 1
    if most < _FULL or mean < _FULL_MEAN or not (now or _steady(waiting)):
        return
    yield Diagnosis(
        "pool_full",
        "warning",
        (
            ("full", percent(most)),
            ("running", whole(running.most)),
            ("waiting", whole(waiting.most)),
        ),
        patient.evidence("usage_pct", "usage_share", "running", "waiting", "kv_tokens"),
        ranked(roomier(patient)),
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


def _mean_full(patient: Patient) -> float | None:
    usage = patient.facts.series.get("usage_pct")
    if usage is not None:
        return usage.mean / 100
    share = patient.facts.series.get("usage_share")
    return None if share is None else share.mean
