"""TensorRT-LLM, of its C++ runtime and of trtllm-serve.

Sources: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp (before 0.9
runtime/gptSession.cpp), tensorrt_llm/_torch/pyexecutor.
"""

from __future__ import annotations

from kvhouse.doctor.line import line

TENSORRT_LLM = (
    line(
        "tensorrt-llm",
        "KV cache",
        "for max tokens in paged KV cache",
        r"Allocated <F> GiB for max tokens in paged KV cache \(<N>\)",
        "allocated_gib tokens",
    ),
    line(
        "tensorrt-llm",
        "KV cache",
        "tokens in paged KV cache",
        r"Using <N> (?:total )?tokens in paged KV cache",
        "tokens",
    ),
    line(
        "tensorrt-llm",
        "KV cache",
        "Max tokens in paged KV cache",
        r"Max tokens in paged KV cache: <N>\. Allocating <N> bytes",
        "tokens kv_bytes",
    ),
    line(
        "tensorrt-llm",
        "maxTokensInPagedKvCache",
        "",
        r"maxTokensInPagedKvCache must be large enough to process at least 1 sequence",
        sets={"error": "one_sequence"},
    ),
    line(
        "tensorrt-llm",
        "insufficient GPU memory",
        "",
        r"Executor creation failed due to insufficient GPU memory",
        sets={"error": "no_room"},
    ),
    line(
        "tensorrt-llm",
        "Total GPU memory",
        "",
        r"Total GPU memory \(GiB\): <F>",
        "total_gib",
    ),
    line(
        "tensorrt-llm",
        "before component creation",
        "",
        r"Free GPU memory before component creation attempt \(GiB\): <F>",
        "free_gib",
    ),
    line(
        "tensorrt-llm",
        "component could not be created",
        "",
        r"The following component could not be created: ([\w ,()]{1,80})",
        "component",
    ),
    line(
        "tensorrt-llm",
        "bytes for k/v cache",
        "",
        r"Allocated? <N> bytes for k/v cache",
        "kv_bytes",
    ),
    line(
        "tensorrt-llm",
        "KV cache",
        "primary blocks=",
        r"tokens per block=<N>, primary blocks=<N>, secondary blocks=<N>"
        r"(?:, max sequence length=<N>)?",
        "tokens_per_block blocks secondary_blocks max_seq_len",
    ),
    line(
        "tensorrt-llm",
        "KV cache",
        "primary pool",
        r"blocks in KV cache primary pool: <N>",
        "blocks",
    ),
    line("tensorrt-llm", "tokens per block", "", r"tokens per block: <N>", "tokens_per_block"),
    line(
        "tensorrt-llm",
        "in paged kv cache: total",
        "",
        r"in paged kv cache: total: <F> GiB, available: <F> GiB",
        "total_gib free_gib",
    ),
    line(
        "tensorrt-llm",
        "max_num_requests=",
        "",
        r"max_seq_len=<N>, max_num_requests=<N>, max_num_tokens=<N>",
        "max_seq_len max_num_requests max_num_tokens",
    ),
    line(
        "tensorrt-llm",
        "one sequence to fit in kvCache",
        "",
        r"too large for at least one sequence to fit in kvCache\. they are reduced to <N>",
        "reduced_len",
        sets={"error": "reduced"},
    ),
    line(
        "tensorrt-llm",
        "Attention window size",
        "upper bound",
        r"Attention window size <N> exceeds upper bound <N> for available blocks",
        "max_seq_len reduced_len",
        sets={"error": "reduced"},
    ),
    line(
        "tensorrt-llm",
        "Loaded engine size",
        "",
        r"Loaded engine size: <N> MiB",
        "weights_mib",
    ),
    line(
        "tensorrt-llm",
        "memory",
        "for execution context",
        r"Allocated <F> MiB for execution context memory",
        "activation_peak_mib",
    ),
    line(
        "tensorrt-llm",
        "TensorRT-LLM version",
        "",
        r"TensorRT-LLM version: ([\d.]{1,16})",
        "engine_version",
    ),
)
