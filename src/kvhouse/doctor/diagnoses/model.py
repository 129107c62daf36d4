"""A model that the user names and that the log contradicts."""

from __future__ import annotations

from collections.abc import Iterable

from kvhouse.doctor.diagnoses.base import Diagnosis, Patient, whole
from kvhouse.formats import get_format


def contradicted(patient: Patient) -> Iterable[Diagnosis]:
    """The log names another model, or figures of it do not follow from the one that was given."""
    spec, named, checks = patient.spec, patient.named, patient.derived.checks
    if spec is None or not patient.given or (checks and all(check.agrees for check in checks)):
        return
    if named is not None and named.layers != spec.layers:
        bf16 = get_format("bf16")
        values = (
            ("given", spec.name),
            ("named", named.name),
            ("given_layers", whole(len(spec.layers))),
            ("named_layers", whole(len(named.layers))),
            ("given_bytes", whole(spec.kv_bytes(1, bf16))),
            ("named_bytes", whole(named.kv_bytes(1, bf16))),
        )
        yield Diagnosis("another_model_named", "warning", values, patient.evidence("model"))
        return
    # A single figure may differ by a setting that the log leaves open, and its row says so.
    differing = [check for check in checks if not check.agrees]
    if 2 * len(differing) > len(checks):
        first = differing[0]
        values = (
            ("given", spec.name),
            ("figure", first.name),
            ("printed", first.printed),
            ("ours", first.ours),
            ("count", whole(len(differing))),
            ("total", whole(len(checks))),
        )
        evidence = patient.evidence(*(check.name for check in differing))
        yield Diagnosis("another_model_seen", "warning", values, evidence)
