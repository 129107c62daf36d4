"""Where a device's memory went, as one bar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kvhouse.doctor.log import Log

#: Parts in the order in which they are drawn.
PARTS = (
    *("others", "weights", "activations", "graphs", "non_torch", "other_torch"),
    *("kv_used", "kv_reserved", "states", "reserved_idle", "unused", "free"),
)
_WEIGHTS = ("weights_gib", "model_loading_gib", "weights_gb", "weights_mib")
_KV = ("available_kv_gib", "kv_cache_gib", "allocated_gib", "kv_bytes", "kv_gib")


@dataclass(frozen=True, slots=True)
class Bar:
    """Memory of one device.

    Attributes:
        device: Its name in the log; empty where it has none.
        total: Bytes of the device; None where the log does not say.
        parts: Bytes of each part of ``PARTS`` that is known and not empty.
    """

    device: str
    total: int | None
    parts: tuple[tuple[str, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """The bar as plain values with stable keys."""
        return {
            "device": self.device,
            "total": self.total,
            "parts": [{"name": name, "bytes": size} for name, size in self.parts],
        }


def bar_of(log: Log) -> Bar | None:
    """The memory of the server's device, or of the fullest of them; None where little is known."""
    if log.engine == "llama.cpp":
        return _of_buffers(log)
    if "oom_total_bytes" in log.facts:
        return _of_oom(log)
    if log.engine == "sglang":
        return _of_sglang(log)
    return _of_profile(log)


def _of_profile(log: Log) -> Bar | None:
    """VLLM and engines that say what weights, activations and graphs take of the total."""
    facts = log.facts
    total = facts.bytes("total_gpu_gib", "total_gib", "total_mib")
    weights = facts.bytes(*_WEIGHTS)
    # Where blocks were given outright, what could have been KV is not.
    given = "num_gpu_blocks_override" in facts
    kv = None if given else facts.bytes(*_KV, "kv_budget_mib")
    peak = facts.bytes("peak_torch_gib")
    activations = facts.bytes("activation_peak_gib", "activation_peak_mib", "peak_non_kv_mib")
    if activations is None and peak is not None and weights is not None:
        activations = max(0, peak - weights)  # the peak of all that torch held
    consumed = facts.bytes("consumed_gib")
    non_torch = facts.bytes("non_torch_gib")
    if non_torch is None and consumed is not None and weights is not None:
        non_torch = max(0, consumed - weights)
    parts = {
        "weights": weights,
        "activations": activations,
        "graphs": facts.bytes("graph_gib", "cuda_graph_estimate_gib"),
        "non_torch": non_torch,
        **_kv_parts(log, kv),
    }
    budget = facts.bytes("budget_gib", "budget_mib")
    free = facts.bytes("free_gib")
    if total is not None and free is not None and log.engine.startswith("vllm"):
        parts["others"] = max(0, total - free)
    if total is not None and budget is not None and weights is not None and kv is not None:
        parts["unused"] = max(0, total - budget - (parts.get("others") or 0))
    return _bar("", total, parts, ("weights", "kv_used", "kv_reserved"))


def _kv_parts(log: Log, kv: int | None) -> dict[str, int | None]:
    """The pool as what was in use at most and the rest, where the log says how full it was."""
    usage = log.facts.series.get("usage_pct")
    share = log.facts.series.get("usage_share")
    full = usage.most / 100 if usage is not None else share.most if share is not None else None
    if kv is None or full is None:
        return {"kv_reserved": kv}
    used = int(min(1.0, full) * kv)
    return {"kv_used": used, "kv_reserved": kv - used}


def _of_sglang(log: Log) -> Bar | None:
    facts = log.facts
    pools = ("k_size_gb", "v_size_gb", "kv_size_gb", "draft_k_size_gb", "draft_v_size_gb")
    sizes = [facts.bytes(name) for name in (*pools, "other_k_size_gb", "other_v_size_gb")]
    kv = facts.bytes("swakvpool_usage_gb") or sum(size or 0 for size in sizes) or None
    states = sum(facts.bytes(name) or 0 for name in ("conv_state_gb", "ssm_state_gb")) or None
    captured = ("graph_gb", "prefill_graph_gb", "draft_graph_gb", "draft_extend_graph_gb")
    graphs = sum(facts.bytes(name) or 0 for name in captured) or None
    weights = sum(facts.bytes(name) or 0 for name in ("weights_gb", "draft_weights_gb")) or None
    left = facts.bytes("free_left_gb", "avail_after_gb")
    parts = {
        "weights": weights,
        "graphs": graphs,
        "states": states,
        **_kv_parts(log, kv),
        "free": left,
    }
    total = facts.bytes("avail_before_load_gb")
    return _bar("", total, parts, ("weights", "kv_used", "kv_reserved"))


def _of_buffers(log: Log) -> Bar | None:
    """llama.cpp: the buffers of the device that has most of the cache."""
    kinds = {"model": "weights", "kv_buffer": "kv_reserved", "compute": "activations"}
    kinds["state_buffer"] = "states"
    devices: dict[str, dict[str, int | None]] = {}
    for name in log.facts.by_name:
        kind, colon, device = name.removesuffix("_mib").partition(":")
        if colon and kind in kinds:
            # Weights that are mapped or repacked lie in the memory of the same device.
            parts = devices.setdefault(re.sub(r"_(?:Mapped|REPACK)$", "", device), {})
            parts[kinds[kind]] = (parts.get(kinds[kind]) or 0) + (log.facts.bytes(name) or 0)
    if not devices:
        return None
    device = max(devices, key=lambda name: sum(size or 0 for size in devices[name].values()))
    total = log.facts.bytes("free_device_mib") if len(devices) <= 2 else None
    return _bar(device, total, devices[device], ("weights", "kv_reserved"))


def _of_oom(log: Log) -> Bar | None:
    facts = log.facts
    allocated = facts.bytes("oom_allocated_bytes")
    idle = facts.bytes("oom_unallocated_bytes")
    reserved = facts.bytes("oom_reserved_bytes")
    if idle is None and reserved is not None and allocated is not None:
        idle = max(0, reserved - allocated)
    weights = facts.bytes(*_WEIGHTS)
    process = facts.bytes("oom_process_bytes")
    held = (allocated or 0) + (idle or 0)
    parts = {
        "others": facts.bytes("oom_others_bytes") if process is not None else None,
        "weights": weights,
        "other_torch": None if allocated is None else max(0, allocated - (weights or 0)),
        "reserved_idle": idle,
        "non_torch": None if process is None else max(0, process - held),
        "free": facts.bytes("oom_free_bytes"),
    }
    return _bar("", facts.bytes("oom_total_bytes"), parts, ("other_torch", "free"))


def _bar(
    device: str, total: int | None, parts: dict[str, int | None], some: tuple[str, ...]
) -> Bar | None:
    """A bar whose rest is free; None where none of ``some`` is known."""
    known = {name: size for name, size in parts.items() if size and size > 0}
    if not any(name in known for name in some):
        return None
    if total is not None and "free" not in known:
        known["free"] = max(0, total - sum(known.values()))
    return Bar(device, total, tuple((n, known[n]) for n in PARTS if known.get(n)))
