"""Every diagnosis, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Iterator

from kvhouse.doctor.case import ABOUT, SETTINGS
from kvhouse.doctor.diagnoses import (
    memory,
    model,
    pool,
    preempted,
    prefixes,
    reserved,
    running,
    stages,
    startup,
    tiers,
)
from kvhouse.doctor.diagnoses.base import Diagnosis, Patient, Rule

RULES: tuple[Rule, ...] = (
    model.contradicted,
    startup.other_processes,
    memory.weights,
    startup.no_blocks,
    startup.cannot_hold_one,
    startup.too_few_states,
    memory.buffers,
    memory.projected,
    memory.no_room,
    memory.fragmentation,
    memory.activations,
    memory.graphs,
    preempted.preemptions,
    pool.many_requests,
    running.full,
    running.capped,
    pool.few_requests,
    stages.uneven,
    pool.tp_over_heads,
    pool.scales_of_one,
    pool.split_context,
    reserved.reserved_ahead,
    reserved.whole_windows,
    pool.hybrid_tokens,
    tiers.slow_offload,
    prefixes.pressure,
    prefixes.no_hits,
    running.idle,
)
_ORDER = {"error": 0, "warning": 1, "note": 2}


def diagnose(patient: Patient) -> tuple[Diagnosis, ...]:
    """What is wrong, what stops the server first; a single ``fine`` where nothing is."""
    found = sorted(_found(patient), key=lambda one: _ORDER[one.severity])
    if any(one.severity != "note" for one in found):
        return tuple(found)
    if not found and _only_settings(patient):
        return (Diagnosis("only_settings", "note"),)
    fine = Diagnosis("fine", "note", (), patient.evidence("kv_tokens", "max_concurrency"))
    return (fine, *found)


def _only_settings(patient: Patient) -> bool:
    """Whether nothing is known but what the server was started with."""
    return not patient.facts.series and patient.facts.by_name.keys() <= SETTINGS | ABOUT


def _found(patient: Patient) -> Iterator[Diagnosis]:
    for rule in RULES:
        yield from rule(patient)
