"""vLLM's memory when it starts, of both engines.

Sources: vllm/v1/core/kv_cache_utils.py, vllm/v1/worker/gpu_worker.py and gpu_model_runner.py; of
the V0 engine vllm/worker/worker.py, vllm/executor and vllm/engine/llm_engine.py.
"""

from __future__ import annotations

from kvhouse.doctor.line import line

_V0 = (
    line(
        "vllm-v0",
        "memory",
        "x gpu_memory_utilization",
        r"total_gpu_memory \(<F> ?GiB\) x gpu_memory_utilization \(<F>\) = <F> ?GiB",
        "total_gpu_gib gpu_memory_utilization budget_gib",
    ),
    line(
        "vllm-v0",
        "memory",
        "model weights take",
        r"model weights take <F> ?GiB; non_torch_memory takes <F> ?GiB; "
        r"PyTorch activation peak memory takes <F> ?GiB",
        "weights_gib non_torch_gib activation_peak_gib",
    ),
    line(
        "vllm-v0",
        "for KV Cache",
        "reserved for KV Cache is",
        r"memory reserved for KV Cache is <F> ?GiB",
        "kv_cache_gib",
    ),
    line(
        "vllm-v0",
        "memory",
        "Memory profiling results: ",
        r"total_gpu_memory=<F>GiB initial_memory_usage=<F>GiB peak_torch_memory=<F>GiB "
        r"memory_usage_post_profile=<F>Gi[bB] non_torch_memory=<F>GiB kv_cache_size=<F>GiB "
        r"gpu_memory_utilization=<F>",
        "total_gpu_gib initial_used_gib peak_torch_gib post_profile_gib non_torch_gib "
        "kv_cache_gib gpu_memory_utilization",
    ),
    line(
        "vllm-v0",
        "model weights took",
        "",
        r"Loading model weights took <F> GB",
        "weights_gb",
    ),
    line(
        "vllm-v0",
        " blocks: ",
        "CPU blocks: ",
        r"# \w{2,12} blocks: <N>, # CPU blocks: <N>",
        "gpu_blocks cpu_blocks",
    ),
    line(
        "vllm-v0",
        "KV cache",
        "is larger than the maximum number",
        r"max seq len \(<N>\) is larger than the maximum number of tokens that can be stored in "
        r"KV cache \(<N>\)",
        "max_model_len kv_tokens",
        sets={"error": "max_seq_len>kv_tokens"},
    ),
)

_POOL = (
    line("vllm", " blocks: ", "# GPU blocks: ", r"# GPU blocks: <N>(?![\d,])", "gpu_blocks"),
    line(
        "vllm",
        "KV cache",
        "Available KV cache memory",
        r"Available KV cache memory: <F> GiB",
        "available_kv_gib",
    ),
    line(
        "vllm",
        "KV cache",
        "KV cache size",
        r"(?:\b(CPU|XPU|TPU|HPU|NPU) )?KV cache size: <N> tokens",
        "kv_device kv_tokens",
    ),
    line(
        "vllm",
        "KV cache",
        "GiB for KV cache on node",
        r"Explicitly set \(<F>/<F>\) GiB for KV cache on node",
        "available_kv_gib total_gib",
        sets={"kv_given": True},
    ),
    line(
        "vllm",
        "KV cache",
        "GiB for KV cache on node",
        r"Auto set \(<F>/<F>\) GiB for KV cache on node \d{1,3}, with <F> GiB requested memory "
        r"for the worker\. <F> GiB",
        "available_kv_gib total_gib budget_gib consumed_gib",
    ),
    line(
        "vllm",
        "tokens per request",
        "Maximum concurrency for",
        r"Maximum concurrency for <N> tokens per request: <F>x",
        "max_model_len max_concurrency",
    ),
    line(
        "vllm",
        "for KV Cache",
        "reserved ",
        r"Initial free memory <F> GiB,? ?reserved <F> GiB memory for KV Cache",
        "free_gib available_kv_gib",
        sets={"kv_given": True},
    ),
    line(
        "vllm",
        "attention block size to",
        "",
        r"attention block size to <N> tokens",
        "attn_block_size",
    ),
    line(
        "vllm",
        "mamba page size",
        "Padding mamba",
        r"Padding mamba page size by <F>%",
        "mamba_page_padding_pct",
    ),
    line(
        "vllm",
        "KV cache",
        "padding layers",
        r"Add <N> padding layers, may waste at most <F>% KV cache",
        "padding_layers padding_pct",
    ),
)

_MEMORY = (
    line(
        "vllm",
        "Model loading took",
        "",
        r"Model loading took <F> Gi?B",
        "model_loading_gib",
    ),
    line(
        "vllm",
        "Graph capturing finished",
        "",
        r"Graph capturing finished in <N> secs?, took <F> GiB",
        "- graph_gib",
    ),
    line(
        "vllm",
        "memory",
        "Estimated CUDA graph memory",
        r"Estimated CUDA graph memory: <F> GiB",
        "cuda_graph_estimate_gib",
    ),
    line(
        "vllm",
        "memory",
        "To maintain the same",
        r"current --gpu-memory-utilization=<F> .{0,240}?increase --gpu-memory-utilization to <F>",
        "gpu_memory_utilization utilization_to_keep_kv",
    ),
    line(
        "vllm",
        "memory",
        "Free memory on device",
        r"Free memory on device \S{0,16} ?\(<F>/<F> GiB\) on startup",
        "free_gib total_gib",
    ),
    line(
        "vllm",
        "memory",
        "Desired GPU memory utilization is",
        r"Desired GPU memory utilization is \(<F>, <F> GiB\)",
        "gpu_memory_utilization budget_gib",
    ),
    line(
        "vllm",
        "memory",
        "Actual usage",
        r"Actual usage(?: is|:) <F> GiB for weights?,? .{0,4}?<F> GiB for peak activation, <F> GiB "
        r"for non-torch memory,? (?:and )?<F> GiB for \w{1,8} ?[Gg]raph",
        "weights_gib activation_peak_gib non_torch_gib graph_gib",
    ),
    line(
        "vllm",
        "memory",
        "for consumed memory",
        r"Actual usage is <F> GiB for consumed memory .{0,40}?, <F> GiB for peak activation, and "
        r"<F> GiB for \w{1,8}Graph",
        "consumed_gib activation_peak_gib graph_gib",
    ),
    line(
        "vllm",
        "memory",
        "to fit into requested memory",
        r"--kv-cache-memory=<N>`? \(<F> GiB\) to fit into requested memory",
        "suggested_kv_cache_memory -",
    ),
    line(
        "vllm",
        "memory",
        "Total non KV cache memory",
        r"Total non KV cache memory: <F>GiB; torch peak memory increase: <F>GiB; .{0,120}?"
        r"weights memory: <F>GiB",
        "- activation_peak_gib weights_gib",
    ),
)

_ERRORS = (
    line(
        "vllm",
        "KV cache",
        "KV cache is needed",
        r"max seq len \(<N>\), \(?<F> GiB KV cache is needed, which is larger than the available "
        r"KV cache memory \(<F> GiB\)(?:.{0,80}?estimated maximum model length is <N>)?",
        "max_model_len needed_gib available_kv_gib estimated_max_len",
        sets={"error": "need>avail"},
    ),
    line(
        "vllm",
        "memory",
        "No available memory for the cache blocks",
        r"No available memory for the cache blocks",
        sets={"error": "no_blocks"},
    ),
    line(
        "vllm",
        "memory",
        "is less than desired GPU memory utilization",
        r"is less than desired GPU memory utilization \(<F>, <F> GiB\)",
        "gpu_memory_utilization budget_gib",
        sets={"error": "utilization>free"},
    ),
    line(
        "vllm",
        "Mamba cache blocks",
        "exceeds available Mamba",
        r"max_num_seqs \(<N>\) exceeds available Mamba cache blocks \(<N>\)",
        "max_num_seqs available_mamba_blocks",
        sets={"error": "max_num_seqs_exceeds_mamba_blocks"},
    ),
    line(
        "vllm",
        "memory",
        "occurred when warming up",
        r"memory occurred when warming up (?:sampler|pooler).{0,40}? with <N> dummy requests",
        "dummy_requests",
        sets={"error": "warm_up"},
    ),
)

VLLM = (*_V0, *_POOL, *_MEMORY, *_ERRORS)
