"""Prefixes that are not found again, and why."""

from __future__ import annotations

from collections.abc import Iterable

from kvhouse.doctor.diagnoses.base import LITTLE, SOME, Diagnosis, Patient, Remedy, percent, whole
from kvhouse.doctor.diagnoses.startup import narrower
from kvhouse.spec.layers import ChunkedAttention, SlidingAttention, State

#: So many lines of statistics before their figures are believed.
_ENOUGH = 10
#: As much in one scrape: tokens that were looked for.
_ENOUGH_TOKENS = 10_000
#: Where prompts part within so many tokens, something at their beginning differs.
_EARLY = 64
_EARLY_SHARE = 0.05


def no_hits(patient: Patient) -> Iterable[Diagnosis]:
    """Prefix caching is on and nothing is ever found, or next to nothing."""
    if _is_off(patient):
        return
    if _reprocessed(patient):
        yield from _windows(patient)
    elif _nothing_found(patient):
        yield _nothing(patient)
    elif _early(patient) is not None:
        yield _part_early(patient)
    yield from _other_keys(patient)


def _is_off(patient: Patient) -> bool:
    values = patient.facts.values()
    if values.get("enable_prefix_caching") is False:
        return True
    return values.get("disable_radix_cache") is True


def _nothing_found(patient: Patient) -> bool:
    facts = patient.facts
    hits, running = facts.series.get("hit_pct"), facts.series.get("running")
    asked = facts.number("queried_total", "prompt_total")
    if asked is not None and "hit_total" in facts:
        return asked >= _ENOUGH_TOKENS and not facts.number("hit_total")
    cached, new = facts.series.get("cached_tokens"), facts.series.get("new_tokens")
    if cached is not None and new is not None:
        return new.count >= _ENOUGH and not cached.total
    known = hits is not None and hits.count >= _ENOUGH and not hits.most
    return known and running is not None and running.most > 0


def _nothing(patient: Patient) -> Diagnosis:
    """The reason, the surest first: blocks that prompts do not fill, windows, what differs."""
    facts = patient.facts
    block = facts.count("attn_block_size", "block_size", "page_size")
    length = facts.number("prompt_length_mean")
    code = "no_hits"
    if "attn_block_size" in facts or (block and length and length < block):
        code = "no_hits_block"
    elif "salted" in facts.series:
        code = "no_hits_salt"
    elif _keeps_windows(patient):
        code = "no_hits_window"
    return Diagnosis(
        code,
        "note",
        (
            ("block", "16" if block is None else whole(block)),
            ("length", "?" if length is None else whole(length)),
        ),
        patient.evidence(
            *("hit_pct", "hit_total", "cached_tokens", "attn_block_size", "block_size"),
            *("enable_prefix_caching", "prompt_length_mean", "salted"),
        ),
        tuple(patient.change("smaller_block", "block", LITTLE, 16))
        if code == "no_hits_block" and "attn_block_size" not in facts
        else (),
    )


def _keeps_windows(patient: Patient) -> bool:
    """Whether layers forget: a window or a state, of which only the last tokens are there."""
    spec = patient.spec
    if spec is None:
        return False
    forgetting = (SlidingAttention, ChunkedAttention, State)
    return any(isinstance(part, forgetting) for layer in spec.layers for part in layer.parts)


def _early(patient: Patient) -> tuple[float, float] | None:
    """Tokens that are found of a prompt at most and its mean length, where prompts part early."""
    facts = patient.facts
    cached, new = facts.series.get("cached_tokens"), facts.series.get("new_tokens")
    kept, prompt = facts.series.get("kept_tokens"), facts.series.get("prompt_tokens")
    if kept is not None and prompt is not None:
        cached, new = kept, prompt
    if cached is None or new is None or new.count < _ENOUGH or not cached.most:
        return None
    if cached.most <= _EARLY and cached.total <= _EARLY_SHARE * (cached.total + new.total):
        return cached.most, new.mean
    return None


def _part_early(patient: Patient) -> Diagnosis:
    found, length = _early(patient) or (0.0, 0.0)
    return Diagnosis(
        "parts_early",
        "warning",
        (("found", whole(found)), ("length", whole(length))),
        patient.evidence("cached_tokens", "new_tokens", "kept_tokens", "prompt_tokens"),
    )


def _reprocessed(patient: Patient) -> bool:
    return "reprocessed" in patient.facts.series


def _windows(patient: Patient) -> Iterable[Diagnosis]:
    """llama.cpp keeps of a window only its last tokens, and cannot go back to earlier ones."""
    series = patient.facts.series["reprocessed"]
    yield Diagnosis(
        "windows_lost",
        "warning",
        (("times", whole(series.count)),),
        patient.evidence("reprocessed", "swa_cells", "recurrent_mib"),
        tuple(patient.change("swa_full", "swa_full", SOME)),
    )


def _other_keys(patient: Patient) -> Iterable[Diagnosis]:
    """Processes that make keys of their own find nothing of what others stored."""
    facts = patient.facts
    if "random_keys" not in facts:
        return
    hits = facts.series.get("external_hit_tokens") or facts.series.get("external_hit_pct")
    if hits is not None and hits.most:
        return
    yield Diagnosis(
        "other_keys",
        "note" if hits is None else "warning",
        (),
        patient.evidence("random_keys", "external_hit_tokens", "external_hit_pct"),
        (Remedy("same_keys", "PYTHONHASHSEED=0", LITTLE),),
    )


def pressure(patient: Patient) -> Iterable[Diagnosis]:
    """Prompts share prefixes, and the pool is too small to keep them until they come again."""
    told = _below(patient) or _fallen(patient) or _replaced(patient)
    if told is None:
        return
    code, values, names = told
    yield Diagnosis(code, "warning", values, patient.evidence(*names), tuple(narrower(patient)))


_Told = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]


def _below(patient: Patient) -> _Told | None:
    """A tier below the pool finds what the pool no longer has."""
    hits = patient.facts.series.get("hit_pct")
    below = patient.facts.series.get("external_hit_pct")
    if hits is None or below is None or below.count < _ENOUGH:
        return None
    if below.mean < 20 or 2 * hits.mean > below.mean:
        return None
    values = (("hits", percent(hits.mean / 100)), ("below", percent(below.mean / 100)))
    return "evicted_early_below", values, ("hit_pct", "external_hit_pct")


def _fallen(patient: Patient) -> _Told | None:
    """The hit rate has fallen to less than half of what it was, and the pool was full."""
    hits = patient.facts.series.get("hit_pct")
    usage = patient.facts.series.get("usage_pct") or patient.facts.series.get("usage_share")
    if hits is None or usage is None or hits.count < _ENOUGH:
        return None
    full = usage.most >= (90 if usage.peak.name == "usage_pct" else 0.9)
    if not full or hits.most < 20 or 2 * hits.last > hits.most:
        return None
    values = (("hits", percent(hits.last / 100)), ("before", percent(hits.most / 100)))
    return "evicted_early", values, ("hit_pct", "usage_pct", "usage_share")


def _replaced(patient: Patient) -> _Told | None:
    """More than twice the pool was evicted, and less than half of all prompt tokens was found."""
    facts = patient.facts
    evicted, pool = facts.number("evicted_total"), facts.number("max_total_num_tokens")
    hit, asked = facts.number("hit_total"), facts.number("prompt_total")
    if not evicted or not pool or not asked or hit is None:
        return None
    if evicted < 2 * pool or not 0 < hit < 0.5 * asked:
        return None
    values = (("hits", percent(hit / asked)), ("times", f"{evicted / pool:,.1f}"))
    return "evicted_early_times", values, ("evicted_total", "max_total_num_tokens", "hit_total")
