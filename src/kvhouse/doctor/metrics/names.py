"""What each engine calls its figures at ``/metrics``, old names and new.

Sources: vllm/v1/metrics/loggers.py, and vllm/engine/metrics.py of the V0 engine;
python/sglang/srt/metrics/collector.py; tools/server/server-context.cpp of llama.cpp (before,
examples/server/server.cpp); docs/source/reference/metrics.md of text-generation-inference;
vllm/distributed/kv_transfer/kv_connector/v1/offloading/metrics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: How the samples of several engines or models become one figure: added up, or the largest; and for
#: a total, something that only grows while the server runs.
Fold = Literal["sum", "most", "total"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure.

    Attributes:
        fact: Its name here.
        names: Its names there, the newest first; the first that a scrape has counts.
        fold: What becomes of several samples.
        labels: Labels that a sample must have to count.
    """

    fact: str
    names: tuple[str, ...]
    fold: Fold = "sum"
    labels: tuple[tuple[str, str], ...] = ()


def _metric(
    fact: str, names: str, fold: Fold = "sum", labels: tuple[tuple[str, str], ...] = ()
) -> Metric:
    return Metric(fact, tuple(names.split()), fold, labels)


def _mean(fact: str, name: str) -> tuple[Metric, ...]:
    """A histogram or a summary: its sum and its count, of which a mean is made."""
    return _metric(f"{fact}_sum", f"{name}_sum", "total"), _metric(
        f"{fact}_count", f"{name}_count", "total"
    )


_VLLM = (
    _metric("running", "vllm:num_requests_running"),
    _metric("waiting", "vllm:num_requests_waiting"),
    _metric("swapped", "vllm:num_requests_swapped"),
    _metric("usage_share", "vllm:kv_cache_usage_perc vllm:gpu_cache_usage_perc", "most"),
    _metric("preempted_total", "vllm:num_preemptions_total vllm:num_preemptions", "total"),
    _metric(
        "queried_total",
        "vllm:prefix_cache_queries_total vllm:prefix_cache_queries "
        "vllm:gpu_prefix_cache_queries_total vllm:gpu_prefix_cache_queries",
        "total",
    ),
    _metric(
        "hit_total",
        "vllm:prefix_cache_hits_total vllm:prefix_cache_hits "
        "vllm:gpu_prefix_cache_hits_total vllm:gpu_prefix_cache_hits",
        "total",
    ),
    _metric("hit_share", "vllm:gpu_prefix_cache_hit_rate", "most"),
    _metric("prompt_total", "vllm:prompt_tokens_total", "total"),
    _metric("generated_total", "vllm:generation_tokens_total", "total"),
    _metric("finished_total", "vllm:request_success_total", "total"),
    *_mean("queue_seconds", "vllm:request_queue_time_seconds"),
    *_mean("prefill_seconds", "vllm:request_prefill_time_seconds"),
    *_mean("prefilled_tokens", "vllm:request_prefill_kv_computed_tokens"),
    *_mean("prompt_length", "vllm:request_prompt_tokens"),
    *_mean("output_length", "vllm:request_generation_tokens"),
    _metric(
        "load_bytes_total",
        "vllm:kv_offload_load_bytes_total",
        "total",
    ),
    _metric("load_seconds_total", "vllm:kv_offload_load_time_total", "total"),
    _metric(
        "load_bytes_total",
        "vllm:kv_offload_total_bytes_total",
        "total",
        (("transfer_type", "CPU_to_GPU"),),
    ),
    _metric(
        "load_seconds_total",
        "vllm:kv_offload_total_time_total",
        "total",
        (("transfer_type", "CPU_to_GPU"),),
    ),
)
_SGLANG = (
    _metric("running", "sglang:num_running_reqs"),
    _metric("waiting", "sglang:num_queue_reqs"),
    _metric("usage_share", "sglang:token_usage", "most"),
    _metric("hit_share", "sglang:cache_hit_rate", "most"),
    _metric("preempted_total", "sglang:num_retracted_requests_total", "total"),
    _metric("retracted_input_total", "sglang:num_retracted_input_tokens_total", "total"),
    _metric("retracted_output_total", "sglang:num_retracted_output_tokens_total", "total"),
    _metric("hit_total", "sglang:cached_tokens_total", "total"),
    _metric("prompt_total", "sglang:prompt_tokens_total", "total"),
    _metric("generated_total", "sglang:generation_tokens_total", "total"),
    _metric("evicted_total", "sglang:evicted_tokens_total", "total"),
    _metric("finished_total", "sglang:num_requests_total", "total"),
    _metric("max_total_num_tokens", "sglang:max_total_num_tokens", "most"),
    *_mean("queue_seconds", "sglang:queue_time_seconds"),
    _metric("load_seconds_total", "sglang:load_back_duration_seconds_sum", "total"),
    _metric("loaded_tokens_total", "sglang:load_back_tokens_total", "total"),
)
_LLAMA = (
    _metric("running", "llamacpp:requests_processing"),
    _metric("waiting", "llamacpp:requests_deferred"),
    _metric("usage_share", "llamacpp:kv_cache_usage_ratio", "most"),
    _metric("cells_used", "llamacpp:kv_cache_tokens", "most"),
    _metric("longest_tokens", "llamacpp:n_tokens_max llamacpp:n_past_max", "most"),
    _metric("slots_per_decode", "llamacpp:n_busy_slots_per_decode", "most"),
    _metric("prompt_total", "llamacpp:prompt_tokens_total", "total"),
    _metric("generated_total", "llamacpp:tokens_predicted_total", "total"),
    _metric("prefill_seconds_total", "llamacpp:prompt_seconds_total", "total"),
)
_TGI = (
    _metric("running", "tgi_batch_current_size"),
    _metric("waiting", "tgi_queue_size"),
    _metric("batch_tokens", "tgi_batch_current_max_tokens", "most"),
    _metric("finished_total", "tgi_request_success", "total"),
    *_mean("queue_seconds", "tgi_request_queue_duration"),
    *_mean("prompt_length", "tgi_request_input_length"),
    *_mean("output_length", "tgi_request_generated_tokens"),
)
_KVHOUSE = (
    _metric("running", "kvhouse_requests_running"),
    _metric("waiting", "kvhouse_requests_waiting"),
    _metric("kv_bytes", "kvhouse_kv_bytes"),
    _metric("preempted_total", "kvhouse_preemptions_total", "total"),
    _metric("queried_total", "kvhouse_admitted_tokens_total", "total"),
    _metric("hit_total", "kvhouse_found_tokens_total", "total"),
    _metric("prompt_total", "kvhouse_prompt_tokens_total", "total"),
    _metric("generated_total", "kvhouse_generated_tokens_total", "total"),
    _metric("finished_total", "kvhouse_requests_total", "total", (("outcome", "finished"),)),
)
#: Classes of kvhouse's ledger whose bytes no request holds.
NOT_HELD = frozenset({"cached", "external", "free"})
#: The figures of each engine, by the prefix that its names have.
METRICS: dict[str, tuple[Metric, ...]] = {
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "llama.cpp": _LLAMA,
    "tgi": _TGI,
    "kvhouse": _KVHOUSE,
}
PREFIXES = {
    "vllm:": "vllm",
    "sglang:": "sglang",
    "llamacpp:": "llama.cpp",
    "tgi_": "tgi",
    "kvhouse_": "kvhouse",
}
#: Labels of what each engine says of its configuration that are facts.
CACHE_CONFIG = {
    "vllm:cache_config_info": {
        "block_size": "block_size",
        "num_gpu_blocks": "gpu_blocks",
        "num_gpu_blocks_override": "num_gpu_blocks_override",
        "cache_dtype": "kv_cache_dtype",
        "enable_prefix_caching": "enable_prefix_caching",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "kv_cache_memory_bytes": "kv_cache_memory_bytes",
        "mamba_cache_mode": "mamba_cache_mode",
        "kv_cache_size_tokens": "kv_tokens",
        "kv_cache_max_concurrency": "max_concurrency",
        "swap_space": "swap_space_gib",
    },
    "sglang:cache_config_info": {"page_size": "page_size", "num_pages": "pages"},
    "kvhouse_cache_config_info": {
        "block_size": "block_size",
        "enable_prefix_caching": "enable_prefix_caching",
        "kv_format": "kv_cache_dtype",
    },
}
#: The label that names the model.
MODEL_LABELS = ("model_name", "model")
