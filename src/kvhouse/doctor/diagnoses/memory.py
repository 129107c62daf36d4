"""What takes the memory: weights, activations, graphs, an allocator in pieces."""

from __future__ import annotations

from collections.abc import Iterable

from kvhouse.doctor.diagnoses.base import (
    LITTLE,
    NONE,
    SOME,
    Diagnosis,
    Patient,
    Remedy,
    gib,
    percent,
    ranked,
    whole,
)
from kvhouse.doctor.diagnoses.startup import narrower, wider
from kvhouse.units import GIB

_WEIGHTS = ("weights_gib", "weights_gb", "model_loading_gib", "weights_mib")
_STOPPED = ("need>avail", "no_blocks", "no_tokens", "max_seq_len>kv_tokens", "oom")


def weights(patient: Patient) -> Iterable[Diagnosis]:
    """The weights alone are nearly all of the memory, or more."""
    facts = patient.facts
    size = facts.bytes(*_WEIGHTS)
    total = facts.bytes("total_gpu_gib", "total_gib", "oom_total_bytes", "avail_before_load_gb")
    budget = facts.bytes("budget_gib") or total
    unloaded = patient.has_error("model_buffer")
    if not unloaded and (not size or not budget or size < 0.85 * budget):
        return
    remedies = [
        *patient.change("narrow_weights", "quantise", SOME),
        *patient.change("fewer_layers", "fewer_layers", LITTLE, "…"),
        *wider(patient),
        *patient.change("offload_weights", "offload_weights", SOME, "…"),
    ]
    yield Diagnosis(
        "weights_unloaded" if unloaded else "weights",
        "error" if unloaded or patient.has_error(*_STOPPED) else "warning",
        (
            ("size", gib(size or 0)),
            ("budget", gib(budget or 0)),
            ("share", percent((size or 0) / budget) if budget else "?"),
        ),
        patient.evidence("error", *_WEIGHTS, "total_gpu_gib", "total_gib", "budget_gib"),
        tuple(remedies),
    )


def activations(patient: Patient) -> Iterable[Diagnosis]:
    """The peak of a prefill, or of the logits, takes what KV could have."""
    facts = patient.facts
    peak = facts.bytes("activation_peak_gib", "activation_peak_mib")
    torch, size = facts.bytes("peak_torch_gib"), facts.bytes(*_WEIGHTS)
    if peak is None and torch is not None and size is not None:
        peak = max(0, torch - size)
    total = facts.bytes("total_gpu_gib", "total_gib")
    kv = facts.bytes("available_kv_gib", "kv_cache_gib")
    warm_up = patient.has_error("warm_up", "prefill", "compute_buffer")
    large = peak is not None and total is not None and peak >= 0.08 * total
    over = peak is not None and kv is not None and peak > max(kv, GIB)
    if not warm_up and not large and not over:
        return
    batched = facts.count(
        "max_num_batched_tokens",
        "max_batch_prefill_tokens",
        "prefill_tokens",
        "n_ubatch",
        "chunked_prefill_size",
    )
    smaller = max(256, batched // 2) if batched else 2048
    remedies = [*patient.change("smaller_batch", "batched", LITTLE, smaller)]
    remedies += patient.change("chunked", "chunked", LITTLE)
    seqs = facts.count("dummy_requests", "max_num_seqs")
    if warm_up and seqs:
        remedies += patient.change("fewer_requests", "seqs", LITTLE, max(1, seqs // 2))
    yield Diagnosis(
        "warm_up" if warm_up else "activations",
        "error" if warm_up else "warning",
        (
            ("peak", "?" if peak is None else gib(peak)),
            ("kv", "?" if kv is None else gib(max(0, kv))),
            ("tokens", "?" if batched is None else whole(batched)),
        ),
        patient.evidence(
            "error",
            "activation_peak_gib",
            "activation_peak_mib",
            "peak_torch_gib",
            "dummy_requests",
            "prefill_tokens",
            "max_num_batched_tokens",
        ),
        ranked(remedies),
    )


def graphs(patient: Patient) -> Iterable[Diagnosis]:
    """CUDA graphs take a good part of what KV has."""
    facts = patient.facts
    size = facts.bytes("cuda_graph_estimate_gib", "graph_gib", "graph_gb")
    kv = facts.bytes("available_kv_gib", "kv_cache_gib")
    if kv is None:
        kv = sum(facts.bytes(name) or 0 for name in ("k_size_gb", "v_size_gb", "kv_size_gb"))
    if not size or size < 0.1 * max(kv, GIB):
        return
    more = None
    if patient.planned is not None and kv:
        more = kv + size
    changes = {} if more is None or patient.engine == "sglang" else {"available_bytes": more}
    remedies = [*patient.change("no_graphs", "no_graphs", SOME, **changes)]
    remedies += patient.change("fewer_graphs", "graph_sizes", LITTLE, 32)
    keep = facts.number("utilization_to_keep_kv")
    if keep is not None and keep < 1:
        remedies += patient.change("keep_kv", "utilization", SOME, f"{keep:g}", **changes)
    yield Diagnosis(
        "graphs",
        "warning",
        (("size", gib(size)), ("kv", gib(kv))),
        patient.evidence(
            "cuda_graph_estimate_gib", "graph_gib", "graph_gb", "utilization_to_keep_kv"
        ),
        ranked(remedies),
    )


def fragmentation(patient: Patient) -> Iterable[Diagnosis]:
    """Memory is free, and yet the allocator finds no piece that is large enough."""
    facts = patient.facts
    tried, free = facts.bytes("oom_tried_bytes"), facts.bytes("oom_free_bytes")
    allocated = facts.bytes("oom_allocated_bytes")
    idle = facts.bytes("oom_unallocated_bytes")
    reserved = facts.bytes("oom_reserved_bytes")
    if idle is None and reserved is not None and allocated is not None:
        idle = max(0, reserved - allocated)
    if tried is None or free is None:
        return
    idle = idle or 0
    names = (
        "error",
        "oom_tried_bytes",
        "oom_total_bytes",
        "oom_free_bytes",
        "oom_allocated_bytes",
        "oom_unallocated_bytes",
        "oom_reserved_bytes",
    )
    values = (("tried", gib(tried)), ("free", gib(free)), ("idle", gib(idle)))
    if free >= tried:
        device = (Remedy("free_device", "nvidia-smi", NONE),)
        yield Diagnosis("oom_free", "error", values, patient.evidence(*names), device)
        return
    segments = patient.change("segments", "segments", LITTLE)
    if idle >= tried or (idle >= 0.25 * GIB and idle + free >= tried):
        yield Diagnosis("fragmentation", "error", values, patient.evidence(*names), (*segments,))
        return
    total = facts.bytes("oom_total_bytes") or 0
    code = "oom_huge" if total and tried > 0.3 * total else "oom"
    lower = facts.number("gpu_memory_utilization", "mem_fraction_static")
    remedies: list[Remedy] = []
    if lower is not None:
        remedies += patient.change("leave_more", "utilization", LITTLE, f"{lower - 0.05:.2f}")
    remedies += patient.change("smaller_batch", "batched", LITTLE, 2048)
    yield Diagnosis(
        code, "error", values, patient.evidence(*names), ranked([*remedies, *narrower(patient)])
    )


def buffers(patient: Patient) -> Iterable[Diagnosis]:
    """llama.cpp allocates the whole cache when it starts, and there is no room for it."""
    if not patient.has_error("kv_buffer"):
        return
    facts = patient.facts
    cells = facts.count("n_ctx", "non_swa_cells")
    half = max(256, cells // 2) if cells else "…"
    yield Diagnosis(
        "kv_buffer",
        "error",
        (("cells", "?" if cells is None else whole(cells)),),
        patient.evidence("error", "allocating_mib", "n_ctx", "projected_mib"),
        (
            *narrower(patient),
            *patient.change("shorter", "length", LITTLE, half),
            *patient.change("kv_on_host", "kv_on_host", SOME),
        ),
    )


def no_room(patient: Patient) -> Iterable[Diagnosis]:
    """TensorRT-LLM says which part of its executor found no room."""
    if not patient.has_error("no_room"):
        return
    facts = patient.facts
    free = facts.bytes("free_gib")
    yield Diagnosis(
        "no_room",
        "error",
        (
            ("component", facts.word("component") or "?"),
            ("free", "?" if free is None else gib(free)),
        ),
        patient.evidence("error", "component", "free_gib", "total_gib"),
        (
            *patient.change("lower_cache_share", "utilization", LITTLE, "0.8"),
            *patient.change("smaller_batch", "batched", LITTLE, 2048),
            *patient.change("fewer_requests", "seqs", LITTLE, "…"),
        ),
    )


def projected(patient: Patient) -> Iterable[Diagnosis]:
    """llama.cpp says before loading that the model and its cache are larger than what is free."""
    facts = patient.facts
    needs, free = facts.count("projected_mib"), facts.count("free_device_mib")
    if needs is None or free is None or needs <= free:
        return
    yield Diagnosis(
        "projected",
        "warning",
        (("needs", f"{needs:,} MiB"), ("free", f"{free:,} MiB")),
        patient.evidence("projected_mib", "free_device_mib", "n_ctx"),
        (
            *narrower(patient),
            *patient.change("shorter", "length", NONE, "…"),
            *patient.change("fewer_layers", "fewer_layers", LITTLE, "…"),
        ),
    )
