"""Text Generation Inference.

Sources: router/src/server.rs (before main.rs), launcher/src/main.rs,
server/text_generation_server/models/flash_causal_lm.py.
"""

from __future__ import annotations

from kvhouse.doctor.launch import fields
from kvhouse.doctor.line import line

_ARGUMENTS = {
    "model_id": "model",
    "num_shard": "tp",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "max_total_tokens": "max_total_tokens",
    "max_input_tokens": "max_input_tokens",
    "max_input_length": "max_input_tokens",
    "max_batch_prefill_tokens": "max_batch_prefill_tokens",
    "max_concurrent_requests": "max_concurrent_requests",
    "cuda_memory_fraction": "cuda_memory_fraction",
    "quantize": "quantization",
}

TGI = (
    line(
        "tgi",
        "`max_batch_prefill_tokens` to",
        "",
        r"Default `max_batch_prefill_tokens` to <N>",
        "max_batch_prefill_tokens",
    ),
    line(
        "tgi",
        "batch total tokens",
        "Setting max batch total",
        r"Setting max batch total tokens to <N>",
        "max_batch_total_tokens",
    ),
    line(
        "tgi",
        " blocks: ",
        "KV-cache blocks",
        r"KV-cache blocks: <N>, size: <N>",
        "kv_blocks block_size",
    ),
    line(
        "tgi",
        "memory",
        "prefill tokens",
        r"Not enough memory to handle (?:<N> total tokens with )?<N> prefill tokens",
        "asked_total_tokens prefill_tokens",
        sets={"error": "prefill"},
    ),
    line(
        "tgi",
        "must be <= `max_batch",
        "`max_total_tokens`",
        r"`max_total_tokens` must be <= `max_batch_total_tokens`\. Given: `?<N>`? and `?<N>`?",
        "max_total_tokens max_batch_total_tokens",
        sets={"error": "total>batch"},
    ),
    line(
        "tgi",
        "Args { model_id",
        "",
        r"Args \{ ",
        reading=fields(_ARGUMENTS),
        starts=True,
    ),
)
