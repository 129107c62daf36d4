"""Smaller engines with one pool of blocks: xinfer (once vllm.rs) and pegainfer.

Sources: src/utils/kvcache_allocator.rs of guoqingbao/xinfer; the logs in pegainfer's issue 509.
"""

from __future__ import annotations

from kvhouse.doctor.line import line

OTHERS = (
    line(
        "xinfer",
        "GPU Kvcache: ",
        "",
        r"GPU Kvcache: \d{1,12} blocks \(\d{1,14} tokens\) free, used <F>%",
        "usage_pct",
        kind="series",
    ),
    line(
        "xinfer",
        "KVCache Allocation",
        "",
        r"KVCache Allocation: <N> GPU blocks \(<F> GB(?: x \d{1,3})?\), max usable kvcache tokens "
        r"<N>(?:.{0,60}?x <N> tokens\])?",
        "gpu_blocks kv_gib kv_tokens max_model_len",
    ),
    line(
        "pegainfer",
        "memory",
        "KV budget=",
        r"total=<N> MiB requested=<N> MiB \(<F>%\) initial_used=<N> MiB {1,40}"
        r"peak_non_kv_increase=<N> MiB margin=<N> MiB -> KV budget=<N> MiB",
        "total_mib budget_mib utilization_pct initial_used_mib peak_non_kv_mib margin_mib "
        "kv_budget_mib",
    ),
    line(
        "pegainfer",
        "KV cache",
        "(profiled)",
        r"KV cache \(profiled\): <N> blocks \(<N> MB",
        "gpu_blocks kv_mib",
    ),
)
