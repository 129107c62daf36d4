"""The same few levers by each engine's exact flags."""

from __future__ import annotations

_VLLM = {
    "length": "--max-model-len {}",
    "utilization": "--gpu-memory-utilization {}",
    "kv_fp8": "--kv-cache-dtype fp8",
    "tp": "--tensor-parallel-size {}",
    "pp": "--pipeline-parallel-size {}",
    "batched": "--max-num-batched-tokens {}",
    "no_graphs": "--enforce-eager",
    "seqs": "--max-num-seqs {}",
    "memory": "--kv-cache-memory-bytes {}",
    "scales": "--calculate-kv-scales",
    "quantise": "--quantization fp8",
    "offload_weights": "--cpu-offload-gb {}",
    "block": "--block-size {}",
    "partition": "VLLM_PP_LAYER_PARTITION={}",
    "no_tier": "--kv-transfer-config",
}
_LEVERS: dict[str, dict[str, str]] = {
    "vllm": _VLLM,
    "vllm-v0": _VLLM | {"chunked": "--enable-chunked-prefill"},
    "sglang": {
        "length": "--context-length {}",
        "utilization": "--mem-fraction-static {}",
        "kv_fp8": "--kv-cache-dtype fp8_e4m3",
        "tp": "--tp-size {}",
        "batched": "--chunked-prefill-size {}",
        "no_graphs": "--disable-cuda-graph",
        "graph_sizes": "--cuda-graph-max-bs {}",
        "seqs": "--max-running-requests {}",
        "careful": "--schedule-conservativeness {}",
        "quantise": "--quantization fp8",
        "offload_weights": "--cpu-offload-gb {}",
        "block": "--page-size {}",
        "partition": "SGLANG_PP_LAYER_PARTITION={}",
        "no_tier": "--enable-hierarchical-cache",
    },
    "llama.cpp": {
        "length": "--ctx-size {}",
        "kv_q8": "--flash-attn on --cache-type-k q8_0 --cache-type-v q8_0",
        "batched": "--ubatch-size {}",
        "seqs": "--parallel {}",
        "fewer_layers": "--n-gpu-layers {}",
        "kv_on_host": "--no-kv-offload",
        "unified": "--kv-unified",
        "swa_full": "--swa-full",
        "swa_small": "swa_full=False",
    },
    "tensorrt-llm": {
        "length": "--max_seq_len {}",
        "utilization": "--kv_cache_free_gpu_memory_fraction {}",
        "tp": "--tp_size {}",
        "batched": "--max_num_tokens {}",
        "seqs": "--max_batch_size {}",
    },
    "kvhouse": {
        "pool": "--kv-memory {}",
        "kv_int8": "--kv-format int8",
        "seqs": "--max-running {}",
        "block": "--block-size {}",
    },
    "tgi": {
        "length": "--max-total-tokens {}",
        "utilization": "--cuda-memory-fraction {}",
        "kv_fp8": "--kv-cache-dtype fp8_e4m3fn",
        "tp": "--num-shard {}",
        "batched": "--max-batch-prefill-tokens {}",
        "seqs": "--max-concurrent-requests {}",
        "no_graphs": "--cuda-graphs 0",
        "quantise": "--quantize fp8",
    },
}
#: Settings of PyTorch's allocator, whatever runs on it.
_TORCH = {"segments": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}


def lever(engine: str, name: str, value: object = "") -> str | None:
    """The flag of an engine for a lever; None where it has none.

    Args:
        engine: The engine.
        name: The lever.
        value: What it is set to.
    """
    if name in _TORCH:
        return _TORCH[name]
    form = _LEVERS.get(engine, {}).get(name)
    return None if form is None else form.format(value)
