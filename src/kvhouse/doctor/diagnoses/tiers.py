"""A tier below the pool whose loads take longer than computing would."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvhouse.doctor.diagnoses.base import NONE, Diagnosis, Patient, whole

#: Loads and prompts that are compared, at least.
_ENOUGH_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second.

    Attributes:
        loaded: That come from the tier, in the mean.
        computed: That prompts were computed at, at least.
    """

    loaded: float
    computed: float


def slow_offload(patient: Patient) -> Iterable[Diagnosis]:
    """Loading a token takes longer than computing it."""
    found = rates(patient)
    if found is None or found.loaded >= found.computed:
        return
    yield Diagnosis(
        "offload_slow",
        "warning",
        (
            ("loaded", whole(found.loaded)),
            ("computed", whole(found.computed)),
            ("times", f"{found.computed / found.loaded:,.1f}"),
        ),
        patient.evidence(
            *("loaded_tokens", "load_ms", "prompt_rate", "loaded_tokens_total"),
            *("load_seconds_total", "load_bytes_total", "prefill_seconds_mean"),
        ),
        tuple(patient.change("no_tier", "no_tier", NONE)),
    )


def rates(patient: Patient) -> Rates | None:
    """Both rates, where both are known."""
    loaded, computed = _loaded(patient), _computed(patient)
    return None if not loaded or not computed else Rates(loaded, computed)


def _loaded(patient: Patient) -> float | None:
    facts = patient.facts
    tokens, took = facts.series.get("loaded_tokens"), facts.series.get("load_ms")
    if tokens is not None and took is not None and took.total:
        return 1000 * tokens.total / took.total if tokens.total >= _ENOUGH_TOKENS else None
    seconds = facts.number("load_seconds_total")
    if not seconds:
        return None
    count = facts.number("loaded_tokens_total")
    size = _token_bytes(patient)
    if count is None and size:
        count = (facts.number("load_bytes_total") or 0) / size
    return None if not count or count < _ENOUGH_TOKENS else count / seconds


def _token_bytes(patient: Patient) -> float | None:
    """Bytes of a token on one rank, by the pool's own figures."""
    seen = patient.planned.at() if patient.planned is not None else None
    if seen is None or not seen.pool_block_bytes or len(seen.groups) != 1:
        return None
    return seen.pool_block_bytes / seen.block_size


def _computed(patient: Patient) -> float | None:
    """The least that the best line of statistics says of computing.

    Its prompt tokens include those that were found, of which the largest shares are taken off.
    """
    facts = patient.facts
    prompts = facts.series.get("prompt_rate")
    if prompts is not None and prompts.most:
        rate = prompts.most
        for name in ("hit_pct", "external_hit_pct"):
            hits = facts.series.get(name)
            rate *= 1 - (hits.most if hits is not None else 0) / 100
        return rate
    tokens, seconds = facts.number("prefilled_tokens_mean"), facts.number("prefill_seconds_mean")
    return tokens / seconds if tokens and seconds else None
