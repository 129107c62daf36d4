"""SGLang: its pools, its memory, its batches. What it prints as GB are GiB.

Sources: python/sglang/srt/model_executor/model_runner.py, mem_cache/memory_pool.py and
swa_memory_pool.py, managers/scheduler.py and scheduler_metrics_mixin.py, entrypoints/engine.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvhouse.doctor.facts import Value
from kvhouse.doctor.launch import fields, flags
from kvhouse.doctor.line import Read, line, value_of

_ARGUMENTS = {
    "model_path": "model",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "context_length": "context_length",
    "mem_fraction_static": "mem_fraction_static",
    "tp_size": "tp",
    "pp_size": "pp",
    "dp_size": "dp",
    "page_size": "page_size",
    "max_running_requests": "max_running_requests",
    "max_total_tokens": "max_total_tokens",
    "chunked_prefill_size": "chunked_prefill_size",
    "swa_full_tokens_ratio": "swa_full_tokens_ratio",
    "mamba_full_memory_ratio": "mamba_full_memory_ratio",
    "speculative_algorithm": "speculative",
    "disable_radix_cache": "disable_radix_cache",
    "disable_cuda_graph": "disable_cuda_graph",
    "quantization": "quantization",
}
_FLAGS = {f"--{name.replace('_', '-')}": fact for name, fact in _ARGUMENTS.items()} | {
    "--tp": "tp",
    "--model": "model",
}


def _pool(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    """A pool of tokens: the first is the model's, one with as many tokens its draft's."""
    tokens = int(match[1].replace(",", ""))
    first = memory.setdefault("pool_tokens", tokens)
    draft = memory.get("pools", 0) and tokens == first
    memory["pools"] = int(memory.get("pools", 0)) + 1
    prefix = "draft_" if draft else "other_" if tokens != first else ""
    yield f"{prefix}tokens", tokens, ""
    for name, text in (("k_size_gb", match[2]), ("v_size_gb", match[3]), ("kv_size_gb", match[4])):
        if text is not None:
            yield f"{prefix}{name}", value_of(name, text), ""


def _begun(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    """What is free before the weights: a draft is loaded later, beside the model and its pool."""
    if "free_at_first" not in memory:
        memory["free_at_first"] = float(match[1])
        yield "avail_before_load_gb", float(match[1]), ""


def _loaded(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    """Weights of the model, or of its draft where a second class of model is loaded."""
    kind, free, weights = match[1], match[2], match[3]
    first = memory.setdefault("model_class", kind or "")
    draft = bool(kind and first and kind != first)
    if not draft:
        yield "avail_before_gb", float(free), ""
    if weights is not None:
        yield f"{'draft_' if draft else ''}weights_gb", float(weights), ""


def _captured(match: re.Match[str], _memory: dict[str, Value]) -> Iterable[Read]:
    """Graphs of one kind: a model's, those of its prompts, and its draft's two."""
    words = set((match[1] or "").split())
    of_prompts = words & {"piecewise", "prefill", "extend"}
    if "draft" in words:
        name = "draft_extend_graph_gb" if of_prompts else "draft_graph_gb"
    else:
        name = "prefill_graph_gb" if of_prompts else "graph_gb"
    yield name, float(match[2]), ""


def _windows(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    """Two pools, whose lines came before this one."""
    yield "swakvpool_usage_gb", float(match[1]), ""
    yield "swa_layer_tokens", int(match[2].replace(",", "")), ""
    yield "full_layer_tokens", int(match[3].replace(",", "")), ""
    memory.pop("pool_tokens", None)
    memory["pools"] = 0


SGLANG = (
    line(
        "sglang",
        "#running-req",
        "Decode batch",
        r"Decode batch[.,] #running-req: <N>, #(?:full )?token: <N>, (?:full )?token usage: <F>"
        r"(?:.{0,240}?#queue-req: <N>)?",
        "running - usage_share waiting",
        kind="series",
    ),
    line(
        "sglang",
        "#running-req",
        "#cached-token",
        r"#new-token: <N>, #cached-token: <N>(?:.{0,240}?input throughput \(token/s\): <F>)?",
        "new_tokens cached_tokens prompt_rate",
        kind="series",
    ),
    line(
        "sglang",
        "KV cache",
        "KV cache pool is full",
        r"KV cache pool is full\. Retract requests\.(?: #retracted_reqs: <N>)?",
        "retracted",
        kind="series",
    ),
    line(
        "sglang",
        " is allocated",
        "KV Cache is allocated",
        r"KV Cache is allocated\. (?:dtype: [\w.]{1,40}, )?#tokens: <N>, "
        r"(?:K size: <F> GB, V size: <F> GB|KV size: <F> GB)",
        reading=_pool,
    ),
    line(
        "sglang",
        "SWAKVPool mem usage",
        "",
        r"SWAKVPool mem usage: <F> GB, swa size: <N>, full size: <N>",
        reading=_windows,
    ),
    line(
        "sglang",
        " is allocated",
        "Mamba Cache",
        r"max_mamba_cache_size: <N>, conv_state size: <F> ?GB, ssm_state size: <F> ?GB",
        "max_mamba_cache_size conv_state_gb ssm_state_gb",
    ),
    line(
        "sglang",
        "avail mem=",
        "Load weight begin",
        r"Load weight begin\. avail mem=<F> GB",
        reading=_begun,
    ),
    line(
        "sglang",
        "avail mem=",
        "Load weight end",
        r"Load weight end\.(?:.{0,60}?type=(\w{1,100}))?.{0,240}?avail mem=<F> GB"
        r"(?:, mem usage=<F> GB)?",
        reading=_loaded,
    ),
    line(
        "sglang",
        "avail mem=",
        "Memory pool end",
        r"Memory pool end\. avail mem=<F> GB",
        "avail_after_gb",
    ),
    line(
        "sglang",
        "avail mem=",
        "raph end",
        r"Capture (?:([a-z][a-z ]{0,30}) )?(?:cuda|CUDA|npu) graph end\."
        r".{0,60}?mem usage=<F> GB",
        reading=_captured,
    ),
    line(
        "sglang",
        "max_total_num_tokens=",
        "",
        r"max_total_num_tokens=<N>, .{0,120}?max_running_requests=<N>, context_len=<N>"
        r"(?:, available_gpu_mem=<F> GB)?",
        "max_total_num_tokens max_running_requests context_length free_left_gb",
    ),
    line(
        "sglang",
        "memory",
        "Not enough memory. Please try to",
        r"Not enough memory\. Please try to increase --mem-fraction-static"
        r"(?:.{0,80}?mem_fraction_static=<F>)?",
        "mem_fraction_static",
        sets={"error": "no_tokens"},
    ),
    line(
        "sglang",
        "memory",
        "Not enough memory to allocate KV",
        r"Not enough memory to allocate KV cache",
        sets={"error": "no_tokens"},
    ),
    line(
        "sglang",
        "than the profiled value",
        "",
        r"max_total_tokens=<N> is larger than the profiled value (-\d{1,12})\b",
        "max_total_tokens profiled_tokens",
        sets={"error": "no_tokens"},
    ),
    line(
        "sglang",
        "full_layer_tokens=",
        "",
        r"full_layer_tokens=<N>, swa_layer_tokens=<N>",
        "full_layer_tokens swa_layer_tokens",
    ),
    line(
        "sglang",
        "server_args=ServerArgs(",
        "",
        r"server_args=ServerArgs\(",
        reading=fields(_ARGUMENTS),
        starts=True,
    ),
    line(
        "sglang",
        "sglang.launch_server",
        "",
        r"sglang\.launch_server(?= )",
        reading=flags(_FLAGS),
    ),
)
