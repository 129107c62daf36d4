"""vLLM while it serves: the line of statistics, preemptions, scales.

Sources: vllm/v1/metrics/loggers.py (``Preemptions`` are those since the line before); before,
vllm/engine/metrics.py and vllm/core/scheduler.py;
vllm/model_executor/layers/quantization/kv_cache.py.
"""

from __future__ import annotations

from kvhouse.doctor.line import line

VLLM_RUNNING = (
    line(
        "vllm-v0",
        "KV cache",
        "reqs, Pending: ",
        r"(?:prompt throughput: <F> tokens/s, .{0,60}?throughput: <F> tokens/s, )?"
        r"Running: <N> reqs?, (?:Swapped: \d{1,9} reqs?, )?Pending: <N> reqs?"
        r", GPU KV cache usage: <F>%",
        "prompt_rate generated_rate running waiting usage_pct",
        kind="series",
        only=True,
    ),
    line(
        "vllm",
        "KV cache",
        "KV cache usage: ",
        r"(?:prompt throughput: <F> tokens/s, .{0,60}?throughput: <F> tokens/s, )?"
        r"Running: <N> reqs?, (?:Swapped: \d{1,9} reqs?, )?(?:Waiting|Pending): <N> reqs?"
        r"(?:, Preempted: \d{1,9} reqs?)?(?:, Deferred: \d{1,9} reqs?)?"
        r"(?:, KV fetch: [^%]{0,100}?waiting)?(?:, Preemptions: <N>)?"
        r", (?:GPU |CPU |NPU |HPU |TPU |XPU )?KV cache usage: <F>%"
        r"(?:, Prefix cache hit rate: <F>%)?(?:.{0,60}?, External prefix cache hit rate: <F>%)?",
        "prompt_rate generated_rate running waiting preempted usage_pct hit_pct external_hit_pct",
        kind="series",
        only=True,
    ),
    line(
        "vllm-v0",
        "hit rate: GPU: ",
        "",
        r"cache hit rate: GPU: <F>%",
        "hit_pct",
        kind="series",
    ),
    line(
        "vllm-v0",
        "KV cache",
        "is preempted by",
        r"is preempted by (?:PreemptionMode\.)?(?:RECOMPUTE|SWAP|recompute|swap) mode because"
        r".{0,240}?total_(?:num_)?cumulative_preemption(?:_cnt)?=<N>",
        "preemptions",
        kind="series",
    ),
    line(
        "vllm",
        "KV cache",
        "KV cache scaling factor 1.0",
        r"Using KV cache scaling factor 1\.0 for (?:fp8_e4m3)?",
        sets={"kv_scale_one": True},
    ),
)
