"""Ranks and pipeline stages that have different amounts of memory for KV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvhouse.doctor.diagnoses.base import LITTLE, Diagnosis, Patient, gib
from kvhouse.doctor.facts import Fact
from kvhouse.spec.sharding import stage_sizes

#: Ranks differ by so much before the smallest is worth a word.
_UNEVEN = 0.03
_STAGE = re.compile(r"PP ?(\d{1,3})(?!\d)")


def uneven(patient: Patient) -> Iterable[Diagnosis]:
    """Every rank gets as many blocks as the poorest has room for."""
    found = patient.facts.all("available_kv_gib") or patient.facts.all("kv_cache_gib")
    sizes = [float(fact.value) for fact in found if not isinstance(fact.value, str)]
    if len(sizes) < 2 or max(sizes) <= 0 or (max(sizes) - min(sizes)) / max(sizes) < _UNEVEN:
        if patient.derived.rule == "fewest_blocks":
            yield Diagnosis(
                "hidden_rank",
                "note",
                (),
                patient.evidence("kv_tokens", "kv_cache_gib", "available_kv_gib"),
            )
        return
    poorest = min(found, key=lambda fact: float(fact.value))
    stages = _by_stage(found)
    values = (
        ("least", gib(min(sizes) * 2**30)),
        ("most", gib(max(sizes) * 2**30)),
        ("worker", poorest.worker or "?"),
    )
    evidence = tuple(sorted(found, key=lambda fact: fact.line))[:8]
    if len(stages) < 2 or max(stages) - min(stages) < _UNEVEN * max(stages):
        yield Diagnosis("uneven_ranks", "warning", values, evidence)
        return
    parts = _partition(patient, stages)
    text = "…" if parts is None else ",".join(map(str, parts))
    yield Diagnosis(
        "uneven_stages",
        "warning",
        values,
        evidence,
        tuple(patient.change("other_partition", "partition", LITTLE, text)),
    )


def _by_stage(found: Iterable[Fact]) -> list[float]:
    """The least memory of each stage in GiB, by the stage that workers name; empty for none."""
    stages: dict[int, float] = {}
    for fact in found:
        named = _STAGE.search(fact.worker)
        if named is None:
            return []
        stage, size = int(named[1]), float(fact.value)
        stages[stage] = min(size, stages.get(stage, size))
    all_there = sorted(stages) == list(range(len(stages)))
    return [stages[stage] for stage in range(len(stages))] if all_there else []


def _partition(patient: Patient, available: Sequence[float]) -> list[int] | None:
    """Layers of each stage with which all would hold about as many tokens.

    A stage of n layers has room for a + n · w, where a is its memory for KV and w a layer's
    weights; with as many layers as its part of all that room, KV per layer is the same everywhere.
    The stages are taken to be vLLM's own, and layers to be alike.
    """
    loaded = _by_stage(patient.facts.all("model_loading_gib"))
    if patient.spec is None or len(loaded) != len(available):
        return None
    layers, stages = len(patient.spec.layers), len(available)
    sizes = stage_sizes(layers, stages)
    weight = min(held / size for held, size in zip(loaded, sizes, strict=True))
    rooms = [max(0.0, a) + n * weight for a, n in zip(available, sizes, strict=True)]
    shares = [layers * room / sum(rooms) for room in rooms]
    parts = [max(1, int(share)) for share in shares]
    by_rest = sorted(range(stages), key=lambda i: int(shares[i]) - shares[i])
    for index in by_rest[: max(0, layers - sum(parts))]:
        parts[index] += 1
    return parts if sum(parts) == layers and parts != list(sizes) else None
