"""Public cases written out as the lines that their engines print.

The forms of the lines are those of the engines' sources, old and new, as the modules of
``kvhouse.doctor.engines`` name them; they are written here a second time, as print statements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Case = Mapping[str, Any]
Values = dict[str, Any]

#: What threads say beside their logs; no engine has a line for it.
NOT_PRINTED = {
    *("kv_groups_approx", "tokens_pinned_per_request", "ids_per_segment", "ids_breakdown"),
    *("max_model_len", "unit", "kv_mib_approx", "app_estimate_bytes", "suggested"),
}
#: Facts that have another name than the case's figure, which threads give in words.
RENAMED = {
    "kv_tokens_approx": "kv_tokens",
    "available_kv_gb_approx": "available_kv_gib",
    "kv_cache_gib_rank_printed": "kv_cache_gib",
    "block_tokens": "attn_block_size",
    "state_mib_per_seq": "kv_mib",
    "kv_buffer_mib": "kv_buffer:CPU_mib",
}


@dataclass(frozen=True)
class Rendered:
    """A log, and the facts that it has to give."""

    text: str
    facts: Values


def render(case: Case) -> list[Rendered]:
    """The logs of a case: several where its thread compares runs."""
    flags, reported = dict(case["flags"] or {}), dict(case["reported"])
    engine = re.sub(r"-(?:metal|ascend|v1-early)$", "", case["engine"])
    forms = {
        "vllm": _vllm_v1,
        "vllm-v1": _vllm_v1,
        "vllm-v0": _vllm_v0,
        "sglang": _sglang,
        "llama.cpp": _llama,
        "ik_llama.cpp": _llama,
        "tensorrt-llm": _tensorrt,
        "tgi": _tgi,
        "whisper.cpp": _whisper,
        "ggml": _ggml,
        "xinfer": _xinfer,
        "pegainfer": _pegainfer,
    }
    form = forms.get(engine)
    if form is None:
        return []
    logs = []
    for run in _runs(reported):
        figures = {key: value for key, value in run.items() if value is not None}
        own = {
            key: figures.pop(key) for key in ("max_model_len", "kv_cache_dtype") if key in figures
        }
        lines = form(case, flags | own, figures)
        logs.append(Rendered("\n".join(lines) + "\n", _expected(figures)))
    return logs


def _runs(reported: Values) -> list[Values]:
    if "runs" in reported:
        rest = {key: value for key, value in reported.items() if key != "runs"}
        return [rest | run for run in reported["runs"]]
    before = {k.removesuffix("_before"): v for k, v in reported.items() if k.endswith("_before")}
    after = {k.removesuffix("_after"): v for k, v in reported.items() if k.endswith("_after")}
    if set(before) == set(after) != set():
        also = [{"kv_tokens": count} for count in reported.get("also", {}).values()]
        return [before, after, *also]
    rows = [reported]
    draft = reported.get("draft_pool")
    if draft:
        rows = [
            {k: v for k, v in reported.items() if k != "draft_pool"}
            | {f"draft_{k}": v for k, v in draft.items()}
        ]
    return rows


def _expected(figures: Values) -> Values:
    found: Values = {}
    for name, value in figures.items():
        if name in NOT_PRINTED:
            continue
        if name == "split":
            found |= {f"kv_buffer:{device}_mib": size for device, size in value.items()}
        elif name == "per_device_mib":
            found |= {f"kv_buffer:CUDA{i}_mib": size for i, size in enumerate(value)}
        elif name == "seqs":
            found[name] = value if isinstance(value, str) else found.get(name, value)
            if not isinstance(value, str):
                del found[name]
                found["n_seq_max"] = value
        else:
            found[RENAMED.get(name, name)] = value
    return found


def _number(case: Case) -> str | None:
    found = re.search(r"(?<![\d.])(\d{1,2}\.\d{1,3}(?:\.\d{1,3})?)", case["engine_version"] or "")
    return found[1] if found else None


_ARGUMENTS = {
    "max_model_len": "max_model_len",
    "tp": "tensor_parallel_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_dtype": "kv_cache_dtype",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "block_size": "block_size",
    "enable_prefix_caching": "enable_prefix_caching",
    "dcp": "decode_context_parallel_size",
    "swap_space_gib": "swap_space",
    "dtype": "dtype",
}


def _vllm_launch(case: Case, flags: Values) -> list[str]:
    arguments = {"model": case["model"] or "m"}
    if "fp8-kv" in case["arch"]:
        arguments["kv_cache_dtype"] = "fp8"
    arguments |= {arg: flags[f] for f, arg in _ARGUMENTS.items() if flags.get(f) is not None}
    words = f"{flags.get('speculative') or ''} {case['model']}"
    drafted = re.search(r"\bn(?:_spec)?=(\d)", words)
    if drafted:
        arguments["speculative_config"] = {
            "method": "mtp",
            "num_speculative_tokens": int(drafted[1]),
        }
    if "kv_cache_memory_gib" in flags:
        arguments["kv_cache_memory_bytes"] = int(flags["kv_cache_memory_gib"] * 2**30)
    if "tp" in flags:
        return [
            f"(APIServer pid=1) INFO 10-06 12:00:31 [utils.py:253] non-default args: {arguments}"
        ]
    # A thread that does not say how many ranks showed a part of the command.
    model = arguments.pop("model").split(" ")[0]
    options = " ".join(
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in arguments.items()
        if name != "speculative_config"
    )
    return [f"+ vllm serve {model} {options}"]


def _vllm_v1(case: Case, flags: Values, r: Values) -> list[str]:
    core = "(EngineCore_DP0 pid=212) INFO 10-06 12:00:31 "
    lines = _vllm_launch(case, flags)
    version, early = _number(case), case["engine"] == "vllm-v1-early"
    if version and "tp" in flags:  # a thread that does not say how many ranks showed no such line
        lines.append(
            f"{core}[core.py:109] Initializing a V1 LLM engine (v{version}) with config: "
            f"model='{case['model'] or 'm'}', speculative_config=None, dtype=torch.bfloat16, "
            f"max_seq_len={flags.get('max_model_len', 4096)}, "
            f"tensor_parallel_size={flags.get('tp', 1)}, pipeline_parallel_size=1"
        )
    say = [*_vllm_memory(flags, r)]
    tokens = r.get("kv_tokens", r.get("kv_tokens_approx"))
    block = r.get("attn_block_size", r.get("block_tokens"))
    if block:
        say.append(
            f"[config.py:281] Setting attention block size to {block} tokens to ensure that "
            "attention page size is >= mamba page size."
        )
    if "mamba_page_padding_pct" in r:
        say.append(
            f"[config.py:312] Padding mamba page size by {r['mamba_page_padding_pct']:.2f}% to "
            "ensure that mamba page size and attention page size are exactly equal."
        )
    if "padding_layers" in r:
        say.append(
            f"[kv_cache_utils.py:1033] Add {r['padding_layers']} padding layers, may waste at "
            f"most {r['padding_pct']:.2f}% KV cache memory"
        )
    if "gpu_blocks" in r:
        say.append(f"[kv_cache_utils.py:407] # GPU blocks: {r['gpu_blocks']}")
    if tokens is not None:
        shown = f"{tokens} tokens" if early else f"{tokens:,} tokens"
        say.append(f"[kv_cache_utils.py:1087] GPU KV cache size: {shown}")
    if "max_concurrency" in r:
        length = flags["max_model_len"]
        shown = f"{length}" if early else f"{length:,}"
        say.append(
            f"[kv_cache_utils.py:1091] Maximum concurrency for {shown} tokens per request: "
            f"{r['max_concurrency']:.2f}x"
        )
    return lines + [core + one for one in say] + _vllm_errors(flags, r)


def _vllm_memory(flags: Values, r: Values) -> list[str]:
    say = []
    if "model_loading_gib" in r:
        say.append(
            f"[gpu_model_runner.py:3480] Model loading took {r['model_loading_gib']:.2f} GiB "
            "memory and 31.2 seconds"
        )
    if "cuda_graph_estimate_gib" in r:
        say.append(
            "[gpu_model_runner.py:6376] Estimated CUDA graph memory: "
            f"{r['cuda_graph_estimate_gib']:.2f} GiB total"
        )
    available = r.get("available_kv_gib", r.get("available_kv_gb_approx"))
    if available is not None:
        say.append(f"[gpu_worker.py:298] Available KV cache memory: {available:.2f} GiB")
    if "utilization_to_keep_kv" in r:
        say.append(
            "[gpu_worker.py:455] CUDA graph memory profiling is enabled (default since v0.21.0). "
            f"The current --gpu-memory-utilization={flags['gpu_memory_utilization']:.4f} is "
            "equivalent to --gpu-memory-utilization=0.8310 without CUDA graph memory profiling. "
            "To maintain the same effective KV cache size as before, increase "
            f"--gpu-memory-utilization to {r['utilization_to_keep_kv']:.4f}."
        )
    if "suggested_kv_cache_memory" in r:
        say.append(
            f"[gpu_worker.py:404] Free memory on device ({r['free_gib']}/{r['total_gib']} GiB) on "
            "startup. Desired GPU memory utilization is "
            f"({flags['gpu_memory_utilization']}, {r['budget_gib']} GiB). Actual usage is "
            f"{r['weights_gib']} GiB for weight, {r['activation_peak_gib']} GiB for peak "
            f"activation, {r['non_torch_gib']} GiB for non-torch memory, and {r['graph_gib']} GiB "
            "for NPUGraph memory. Replace gpu_memory_utilization config with "
            f"`--kv-cache-memory={r['suggested_kv_cache_memory']}` (53.46 GiB) to fit into "
            "requested memory, or `--kv-cache-memory=1` (0.0 GiB) to fully utilize gpu memory."
        )
    return say


def _vllm_errors(flags: Values, r: Values) -> list[str]:
    core = "(EngineCore_DP0 pid=212) ERROR 10-06 12:00:32 [core.py:387] ValueError: "
    error = r.get("error")
    if error == "need>avail":
        estimate = (
            f" Based on the available memory, the estimated maximum model length is "
            f"{r['estimated_max_len']}."
            if "estimated_max_len" in r
            else ""
        )
        return [
            f"{core}To serve at least one request with the models's max seq len "
            f"({flags['max_model_len']}), ({r['needed_gib']:.2f} GiB KV cache is needed, which is "
            f"larger than the available KV cache memory ({r['available_kv_gib']:.2f} GiB)."
            f"{estimate} Try increasing `gpu_memory_utilization` or decreasing `max_model_len` "
            "when initializing the engine."
        ]
    if error == "max_num_seqs_exceeds_mamba_blocks":
        return [
            f"{core}max_num_seqs ({r['max_num_seqs']}) exceeds available Mamba cache blocks "
            f"({r['available_mamba_blocks']}). Each decode sequence requires one Mamba cache block"
        ]
    return []


def _vllm_v0(case: Case, flags: Values, r: Values) -> list[str]:
    head = "INFO 12-06 11:39:36 "
    tp = f"tensor_parallel_size={flags['tp']}, " if "tp" in flags else ""
    lines = [
        f"{head}llm_engine.py:237] Initializing an LLM engine (v{_number(case) or '0.2.7'}) with "
        f"config: model='{case['model']}', speculative_config=None, dtype=torch.float16, "
        f"max_seq_len={flags.get('max_model_len', 4096)}, download_dir=None, "
        f"{tp}pipeline_parallel_size=1, kv_cache_dtype=auto"
    ]
    if "weights_gb" in r:
        lines.append(f"{head}model_runner.py:1115] Loading model weights took {r['weights_gb']} GB")
    kv = r.get("kv_cache_gib", r.get("kv_cache_gib_rank_printed"))
    if "peak_torch_gib" in r:
        lines.append(
            f"{head}worker.py:232] Memory profiling results: "
            f"total_gpu_memory={r['total_gpu_gib']:.2f}GiB initial_memory_usage=15.50GiB "
            f"peak_torch_memory={r['peak_torch_gib']:.2f}GiB memory_usage_post_profile=15.60Gib "
            f"non_torch_memory={r['non_torch_gib']:.2f}GiB kv_cache_size={kv:.2f}GiB "
            f"gpu_memory_utilization={flags['gpu_memory_utilization']:.2f}"
        )
    elif kv is not None:
        weights = r.get("weights_gib", r.get("weights_gb"))
        if "total_gpu_gib" in r:
            lines.append(
                f"{head}worker.py:267] the current vLLM instance can use total_gpu_memory "
                f"({r['total_gpu_gib']:.2f}GiB) x gpu_memory_utilization "
                f"({flags['gpu_memory_utilization']:.2f}) = {r['budget_gib']:.2f}GiB"
            )
        lines.append(
            f"{head}worker.py:267] model weights take {weights:.2f}GiB; non_torch_memory takes "
            f"{r['non_torch_gib']:.2f}GiB; PyTorch activation peak memory takes "
            f"{r['activation_peak_gib']:.2f}GiB; the rest of the memory reserved for KV Cache is "
            f"{kv:.2f}GiB."
        )
    if "gpu_blocks" in r:
        lines.append(
            f"{head}executor_base.py:110] # CUDA blocks: {r['gpu_blocks']}, "
            f"# CPU blocks: {r.get('cpu_blocks', 2048)}"
        )
    if "max_concurrency" in r:
        lines.append(
            f"{head}gpu_executor.py:117] Maximum concurrency for {flags['max_model_len']} tokens "
            f"per request: {r['max_concurrency']:.2f}x"
        )
    if r.get("error") == "max_seq_len>kv_tokens":
        lines.append(
            f"[rank0]: ValueError: The model's max seq len ({flags['max_model_len']}) is larger "
            "than the maximum number of tokens that can be stored in KV cache "
            f"({r['kv_tokens']}). Try increasing `gpu_memory_utilization`"
        )
    return lines


def _sglang(case: Case, flags: Values, r: Values) -> list[str]:
    head = "[2025-12-29 18:33:03 TP0] "
    given = {"tp": "tp_size"}
    arguments = ", ".join(
        f"{given.get(k, k)}={v!r}" for k, v in flags.items() if k != "speculative"
    )
    lines = [
        f"[2025-12-29 18:33:00] server_args=ServerArgs(model_path='{case['model']}', {arguments})"
    ]
    if "avail_before_gb" in r:
        lines.append(
            f"{head}Load weight end. type=X, dtype=torch.bfloat16, avail "
            f"mem={r['avail_before_gb']:.2f} GB, mem usage=8.13 GB."
        )
    full, swa = r.get("full_layer_tokens"), r.get("swa_layer_tokens")
    tokens = r.get("tokens")
    for prefix in ("", "draft_"):
        count = r.get(f"{prefix}tokens")
        if count is not None:
            lines.append(
                f"{head}KV Cache is allocated. #tokens: {count}, K size: "
                f"{r[f'{prefix}k_size_gb']:.2f} GB, V size: {r[f'{prefix}v_size_gb']:.2f} GB"
            )
    if full is not None and swa is not None:
        lines.append(
            f"{head}KV Cache is allocated. #tokens: {full}, K size: {r['k_size_gb']:.2f} GB, "
            f"V size: {r['v_size_gb']:.2f} GB"
        )
        lines.append(f"{head}SWAKVPool mem usage: 9.99 GB, swa size: {swa}, full size: {full}")
    if "avail_after_gb" in r:
        lines.append(f"{head}Memory pool end. avail mem={r['avail_after_gb']:.2f} GB")
    total = r.get("max_total_num_tokens")
    if total is not None or tokens is None:
        lines.append(
            f"{head}max_total_num_tokens={total}, chunked_prefill_size=8192, "
            "max_prefill_tokens=16384, max_running_requests=48, "
            f"context_len={flags.get('context_length', 4096)}, "
            f"available_gpu_mem={r.get('free_left_gb', 0):.2f} GB"
        )
    return lines


def _llama(case: Case, flags: Values, r: Values) -> list[str]:
    fork = case["engine"] == "ik_llama.cpp" or "ckv_mib" in r
    context = "llama_new_context_with_model" if fork else "llama_context"
    lines = [f"{context}: {n:13} = {flags[n]}" for n in ("n_ctx", "n_seq_max") if n in flags]
    kind = flags.get("cache_type") or flags.get("cache_type_k") or flags.get("type_k") or "f16"
    if case["id"] == "c090":
        kind = "q8_0"
    for name, size in _expected(r).items():
        if name.startswith("kv_buffer:"):
            device = name.removeprefix("kv_buffer:").removesuffix("_mib")
            lines.append(f"llama_kv_cache_init: {device:>10} KV buffer size = {size:8.2f} MiB")
    if "c_kv_mib" in r:
        size = r["c_kv_mib"]
        lines.append(
            f"{context}: KV self size  = {size:7.2f} MiB, c^KV ({kind}): {size:7.2f} MiB, "
            "kv^T: not used"
        )
    elif "state_mib_per_seq" in r:
        size = r["state_mib_per_seq"]
        lines.append(
            f"{context}: KV self size  = {size:7.2f} MiB, K (f32):    3.75 MiB, "
            "V (f32):   20.00 MiB"
        )
    elif "kv_mib" in r and "k_mib" in r:
        lines.append(
            f"{context}: KV self size  = {r['kv_mib']:7.2f} MiB, "
            f"K ({kind}): {r['k_mib']:7.2f} MiB, V ({kind}): {r['v_mib']:7.2f} MiB"
        )
    elif "kv_mib" in r:
        lines.append(f"llama_init_from_file: kv self size  = {r['kv_mib']:7.2f} MB")
    lines += _llama_windows(r, kind)
    if "recurrent_mib" in r:
        lines.append(
            f"llama_memory_recurrent: size = {r['recurrent_mib']:7.2f} MiB ({r['cells']:6d} cells, "
            f"{r['layers_printed']:3d} layers, {r['seqs']:2d} seqs), R (f32): {r['r_mib']:7.2f} "
            f"MiB, S (f32): {r['s_mib']:7.2f} MiB"
        )
    return lines


def _llama_windows(r: Values, kind: str) -> list[str]:
    lines = []
    for part, name in (("non_swa", "non-SWA"), ("swa", "    SWA")):
        if f"{part}_mib" not in r:
            continue
        cells, layers = r[f"{part}_cells"], r.get(f"{part}_layers", 43)
        size, seqs = r[f"{part}_mib"], r.get("seqs", "1/1")
        lines.append(f"llama_kv_cache_iswa: creating {name} KV cache, size = {cells} cells")
        lines.append(
            f"llama_kv_cache: size = {size:7.2f} MiB ({cells:6d} cells, {layers:3d} layers, "
            f"{seqs:>4} seqs), K ({kind}): {size:7.2f} MiB, V ({kind}):    0.00 MiB"
        )
    return lines


def _tensorrt(_case: Case, flags: Values, r: Values) -> list[str]:
    head, lines = "[TensorRT-LLM][INFO] ", []
    if "kv_bytes" in r:
        lines.append(f"{head}Allocate {r['kv_bytes']} bytes for k/v cache.")
    if "blocks" in r:
        lines.append(
            f"{head}Max KV cache blocks per sequence: 65 [window size=2051], tokens per "
            f"block={flags['tokens_per_block']}, primary blocks={r['blocks']}, secondary blocks=0, "
            "max sequence length=2051"
        )
    elif "tokens_per_block" in flags:
        lines.append(f"{head}Number of tokens per block: {flags['tokens_per_block']}.")
    if "allocated_gib" in r:
        lines.append(
            f"{head}[MemUsageChange] Allocated {r['allocated_gib']:.2f} GiB for max tokens in "
            f"paged KV cache ({r['tokens']})."
        )
    else:
        lines.append(f"{head}Using {r['tokens']} tokens in paged KV cache.")
    return lines


def _tgi(_case: Case, _flags: Values, r: Values) -> list[str]:
    router = "2024-09-03T04:40:19.370247Z  INFO text_generation_router::server: "
    return [
        "2024-09-03T04:40:18.377577Z  INFO text_generation_launcher: KV-cache blocks: "
        f"{r['kv_blocks']}, size: {r['block_size']}",
        f"{router}router/src/server.rs:1651: Setting max batch total tokens to "
        f"{r['max_batch_total_tokens']}",
    ]


def _whisper(case: Case, _flags: Values, r: Values) -> list[str]:
    lines = [f"whisper_model_load: {k:13} = {v}" for k, v in case["config"].items()]
    for name in ("self", "cross", "pad"):
        if f"kv_{name}" in r:
            words = {
                "self": "kv self size  =",
                "cross": "kv cross size =",
                "pad": "kv pad  size  =",
            }
            lines.append(f"whisper_init_state: {words[name]} {r[f'kv_{name}']:7.2f} MB")
    return lines


def _ggml(_case: Case, flags: Values, r: Values) -> list[str]:
    return [
        f"starcoder_model_load: n_ctx   = {flags['n_ctx']}",
        f"starcoder_model_load: memory_size = {r['memory_size_mib']:8.2f} MB, n_mem = {r['n_mem']}",
    ]


def _xinfer(_case: Case, flags: Values, r: Values) -> list[str]:
    return [
        "vllm-rs-med1  | 2026-01-21T03:54:36.475112Z  WARN vllm_rs::utils::kvcache_allocator: "
        f"KVCache Allocation: {r['gpu_blocks']} GPU blocks ({r['kv_gib']:.2f} GB), max usable "
        f"kvcache tokens {r['kv_tokens']}, scheduling limits [2 seqs x {flags['max_model_len']} "
        "tokens]"
    ]


def _pegainfer(_case: Case, _flags: Values, r: Values) -> list[str]:
    return [
        f"weights: memory profile: total={r['total_mib']} MiB requested={r['budget_mib']} MiB "
        f"(90%) initial_used={r['initial_used_mib']} MiB peak_non_kv_increase="
        f"{r['peak_non_kv_mib']} MiB margin={r['margin_mib']} MiB -> "
        f"KV budget={r['kv_budget_mib']} MiB",
        f"weights: KV cache (profiled): {r['gpu_blocks']} blocks ({r['kv_mib']} MB, 67% of 9 MB "
        "free)",
    ]
