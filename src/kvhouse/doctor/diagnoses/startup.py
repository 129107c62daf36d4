"""Why a server does not start: nothing left for KV, or less than one request needs."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from kvhouse.doctor.diagnoses.base import (
    LITTLE,
    MUCH,
    NONE,
    SOME,
    Diagnosis,
    Patient,
    Remedy,
    gib,
    ranked,
    whole,
)
from kvhouse.units import GIB

#: More of a device than this is not given to one process: drivers and graphs need the rest.
_MOST_UTILIZATION = 0.98
#: Half of the last digit that vLLM prints of a size in GiB.
_HALF_PRINTED = GIB // 200
#: A share of the device that can still be raised without asking what else runs there.
_RAISABLE = 0.93
_NARROW = ("fp8", "int8", "int4", "q8", "q4", "nvfp4", "fp4")


def cannot_hold_one(patient: Patient) -> Iterable[Diagnosis]:
    """The pool is smaller than one request of the longest length."""
    facts = patient.facts
    sglang = _cut_by_sglang(patient)
    if not sglang and not patient.has_error(
        "need>avail", "max_seq_len>kv_tokens", "total>batch", "reduced", "one_sequence"
    ):
        return
    asked = facts.count("max_model_len", "max_total_tokens", "context_length", "max_seq_len")
    available = facts.bytes("available_kv_gib", "kv_cache_gib")
    needed, largest = _needed(patient), _largest(patient)
    values = (
        ("asked", "?" if asked is None else whole(asked)),
        ("needed", "?" if needed is None else gib(needed)),
        ("available", "?" if available is None else gib(available)),
        ("largest", "?" if largest is None else whole(largest)),
    )
    code = "cannot_hold_one" if largest is not None else "cannot_hold_one_unsized"
    if needed is None or available is None:
        code = "pool_below_length"
    yield Diagnosis(
        code,
        "warning" if sglang or patient.has_error("reduced") else "error",
        values,
        patient.evidence(
            "error",
            "needed_gib",
            "kv_tokens",
            "max_model_len",
            "max_total_tokens",
            "max_total_num_tokens",
            "context_length",
            "reduced_len",
        ),
        ranked(
            [
                *_shorter(patient, largest),
                *_more_memory(patient, needed, available),
                *narrower(patient),
                *wider(patient),
            ]
        ),
    )


def _cut_by_sglang(patient: Patient) -> bool:
    """SGLang starts with fewer tokens than its context and says nothing of it."""
    tokens = patient.facts.count("max_total_num_tokens")
    context = patient.facts.count("context_length")
    return patient.engine == "sglang" and bool(tokens and context and tokens < context)


def _needed(patient: Patient) -> int | None:
    """Bytes that one request needs: as printed, or by the planner, or by the pool's own bytes."""
    facts = patient.facts
    printed = facts.bytes("needed_gib")
    if printed is not None:
        return printed
    view = patient.planned.at() if patient.planned is not None else None
    if view is not None and patient.planned is not None:
        return view.needed_bytes(patient.planned.length)
    pool, tokens = facts.bytes("kv_cache_gib"), facts.count("kv_tokens")
    asked = facts.count("max_model_len")
    if pool and tokens and asked and patient.engine == "vllm-v0":
        return pool * asked // tokens
    return None


def _largest(patient: Patient) -> int | None:
    """The longest request that does fit: as the engine says, else by the planner.

    The planner is given the least memory that can have been printed so, for a length to rely on.
    """
    facts = patient.facts
    stated = facts.count(
        "estimated_max_len", "reduced_len", "max_total_num_tokens", "max_batch_total_tokens"
    )
    if stated is None and patient.engine == "vllm-v0":
        stated = facts.count("kv_tokens")
    available = facts.bytes("available_kv_gib")
    if stated is not None or patient.planned is None or available is None:
        return stated
    view = patient.planned.at(available_bytes=max(0, available - _HALF_PRINTED))
    return view.estimated_max_len or None if view is not None else None


def _shorter(patient: Patient, largest: int | None) -> Iterable[Remedy]:
    if largest:
        yield from patient.change("shorter", "length", LITTLE, largest, max_model_len=largest)


def _more_memory(patient: Patient, needed: int | None, available: int | None) -> Iterable[Remedy]:
    """A larger share of the device, where what is missing is there."""
    facts = patient.facts
    total = facts.bytes("total_gpu_gib", "total_gib")
    share = facts.number("gpu_memory_utilization")
    if needed is None or available is None:
        return
    if total and share:
        wanted = ceil(1000 * (share + (needed - available) / total)) / 1000
        free = facts.bytes("free_gib")
        most = _MOST_UTILIZATION if free is None else min(_MOST_UTILIZATION, free / total)
        if wanted <= most:
            yield from patient.change(
                "more_memory", "utilization", SOME, f"{wanted:g}", available_bytes=needed
            )
    elif share is not None and share < _MOST_UTILIZATION:
        yield Remedy(
            "more_memory_unsized",
            "--gpu-memory-utilization …",
            SOME,
            (("missing", gib(needed - available)),),
        )


def narrower(patient: Patient) -> Iterable[Remedy]:
    """Keys and values in 8 bits, where they are in 16."""
    stated = str(patient.facts.word("kv_cache_dtype", "type_k") or "auto").lower()
    if any(name in stated for name in _NARROW):
        return
    yield from patient.change("kv_8_bits", "kv_fp8", SOME, kv_dtype="fp8")
    yield from patient.change("kv_8_bits", "kv_q8", SOME, type_k="q8_0", type_v="q8_0")
    yield from patient.change("kv_int8", "kv_int8", SOME)


def wider(patient: Patient) -> Iterable[Remedy]:
    """Twice the ranks."""
    ranks = patient.facts.count("tp") or 1
    yield from patient.change("more_ranks", "tp", MUCH, 2 * ranks, tp=2 * ranks)


def roomier(patient: Patient) -> Iterable[Remedy]:
    """Whatever makes room for more tokens in the pool."""
    yield from narrower(patient)
    yield from wider(patient)
    share, pool = patient.facts.number("gpu_memory_utilization"), patient.facts.bytes("kv_bytes")
    if share is not None and share < _RAISABLE:
        yield from patient.change("raise_share", "utilization", LITTLE, f"{share + 0.03:.2f}")
    if pool:
        yield from patient.change("larger_pool", "pool", LITTLE, f"{ceil(2 * pool / 2**20)}MiB")


def no_blocks(patient: Patient) -> Iterable[Diagnosis]:
    """Weights, activations and the rest leave nothing for KV."""
    if not patient.has_error("no_blocks", "no_tokens"):
        return
    facts = patient.facts
    available = facts.bytes("available_kv_gib")
    missing = -available if available is not None and available < 0 else None
    share = facts.number("gpu_memory_utilization", "mem_fraction_static")
    remedies: list[Remedy] = []
    if share is not None and share < 0.95:
        remedies += patient.change("raise_share", "utilization", SOME, "0.95")
    remedies += patient.change("smaller_batch", "batched", LITTLE, 2048)
    remedies += patient.change("no_graphs", "no_graphs", LITTLE)
    remedies += [*patient.change("narrow_weights", "quantise", SOME), *wider(patient)]
    yield Diagnosis(
        "no_blocks" if missing is None else "no_blocks_missing",
        "error",
        (("missing", "?" if missing is None else gib(missing)),),
        patient.evidence(
            "error", "available_kv_gib", "model_loading_gib", "weights_gib", "activation_peak_gib"
        ),
        ranked(remedies),
    )


def other_processes(patient: Patient) -> Iterable[Diagnosis]:
    """Utilization is a share of all memory, some of which others hold."""
    facts = patient.facts
    total, free = facts.bytes("total_gib", "total_gpu_gib"), facts.bytes("free_gib")
    used = facts.bytes("initial_used_gib")
    weights = facts.bytes("weights_gb", "weights_gib", "model_loading_gib") or 0
    others = None
    if total and free is not None:
        others = total - free
    elif total and used is not None:
        others = used - weights  # V0 measures once the weights are loaded
    elif "oom_others_bytes" in facts and "oom_process_bytes" in facts:
        total, others = facts.bytes("oom_total_bytes"), facts.bytes("oom_others_bytes")
        free = facts.bytes("oom_free_bytes")
    refused = patient.has_error("utilization>free")
    if not total or others is None or (not refused and others < max(GIB, 0.05 * total)):
        return
    remedies: list[Remedy] = []
    if refused and free is not None:
        fits = int(100 * free / total) / 100
        remedies += patient.change("lower_share", "utilization", LITTLE, f"{fits:g}")
    remedies.append(Remedy("free_device", "nvidia-smi", NONE))
    yield Diagnosis(
        "other_processes",
        "error" if refused else "warning",
        (("others", gib(others)), ("total", gib(total))),
        patient.evidence(
            "error", "free_gib", "total_gib", "initial_used_gib", "oom_others_bytes", "budget_gib"
        ),
        tuple(remedies),
    )


def too_few_states(patient: Patient) -> Iterable[Diagnosis]:
    """Each request of a hybrid model needs a block for its state."""
    facts = patient.facts
    blocks, asked = facts.count("available_mamba_blocks"), facts.count("max_num_seqs")
    if blocks is None or asked is None:
        return
    yield Diagnosis(
        "too_few_states",
        "error",
        (("blocks", whole(blocks)), ("asked", whole(asked))),
        patient.evidence("error", "available_mamba_blocks", "max_num_seqs"),
        (*patient.change("fewer_requests", "seqs", NONE, blocks), *wider(patient)),
    )
