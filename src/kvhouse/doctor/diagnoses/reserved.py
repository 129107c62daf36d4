"""Memory that is set aside for the longest request, whatever requests hold."""

from __future__ import annotations

from collections.abc import Iterable

from kvhouse.doctor.diagnoses.base import LITTLE, SOME, Diagnosis, Patient, gib, percent, whole

#: Less of a reservation than this is used, in the mean, before a word is said.
_USED = 0.5


def reserved_ahead(patient: Patient) -> Iterable[Diagnosis]:
    """Every request's place is allocated at its longest, as the log's own lengths show."""
    found = _slots(patient) or _batches(patient)
    if found is None:
        yield from _cells(patient)
        return
    place, used, names = found
    if not place or used >= _USED * place:
        return
    yield Diagnosis(
        "reservation_waste",
        "warning",
        (("place", whole(place)), ("used", whole(used)), ("share", percent(1 - used / place))),
        patient.evidence(*names),
        (
            *patient.change("unified", "unified", LITTLE),
            *patient.change("shorter_places", "length", SOME, "…"),
        ),
    )


_Found = tuple[float, float, tuple[str, ...]]


def _slots(patient: Patient) -> _Found | None:
    """llama-server: the context of a slot, and the length that its requests ended with."""
    facts = patient.facts
    ended = facts.series.get("request_tokens")
    slot = facts.series.get("slot_context_tokens")
    place = facts.number("slot_context") or (slot.most if slot is not None else None)
    unified = facts.values().get("kv_unified") is True
    sequences = facts.count("n_seq_max") or facts.count("n_slots") or 1
    if ended is None or not place or unified or sequences < 2:
        return None
    return place, ended.mean, ("request_tokens", "slot_context", "slot_context_tokens", "n_seq_max")


def _batches(patient: Patient) -> _Found | None:
    """TGI: the tokens that a batch may come to, and what its requests come to in the mean."""
    facts = patient.facts
    tokens, running = facts.series.get("batch_tokens"), facts.series.get("running")
    prompt, output = facts.number("prompt_length_mean"), facts.number("output_length_mean")
    if tokens is None or running is None or not running.mean or prompt is None or output is None:
        return None
    names = ("batch_tokens", "running", "prompt_length_mean", "output_length_mean")
    return tokens.mean / running.mean, prompt + output, names


def _cells(patient: Patient) -> Iterable[Diagnosis]:
    """llama.cpp without a word on lengths: what the places are."""
    facts = patient.facts
    size = facts.bytes("kv_mib", "non_swa_mib")
    sequences = facts.count("n_seq_max") or 1
    cells = facts.count("cells", "non_swa_cells", "n_ctx")
    if patient.engine != "llama.cpp" or not size or not cells or sequences < 2:
        return
    yield Diagnosis(
        "reserved_ahead",
        "note",
        (("size", gib(size)), ("sequences", whole(sequences)), ("share", percent(1 / sequences))),
        patient.evidence("kv_mib", "non_swa_mib", "n_seq_max", "n_ctx"),
        tuple(patient.change("unified", "unified", LITTLE)),
    )


def whole_windows(patient: Patient) -> Iterable[Diagnosis]:
    """llama.cpp keeps windows at full length where it is told to, or by llama-cpp-python."""
    facts = patient.facts
    window, full = facts.count("swa_cells"), facts.count("non_swa_cells")
    server = patient.planned
    if window is None or window != full or server is None:
        return
    seen = server.at(swa_full=False)
    size = facts.bytes("swa_mib")
    if seen is None or not size:
        return
    needed = dict(seen.figures).get("swa_cells")
    if not needed or needed >= window:
        return
    smaller = size * needed // window
    yield Diagnosis(
        "whole_windows",
        "note",
        (("size", gib(size)), ("needed", gib(smaller))),
        patient.evidence("swa_cells", "non_swa_cells", "swa_mib"),
        tuple(patient.change("only_windows", "swa_small", LITTLE)),
    )
