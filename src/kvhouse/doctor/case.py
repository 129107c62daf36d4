"""Facts as a case of ``kvhouse.planner.engines.cases``, and what the planner derives of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvhouse.doctor.facts import Value
from kvhouse.doctor.log import Log
from kvhouse.errors import KvhouseError
from kvhouse.planner.engines.cases.case import Check
from kvhouse.planner.engines.cases.judge import judge
from kvhouse.planner.engines.vllm_options import CPU_BLOCK
from kvhouse.spec.model import ModelSpec

#: Facts that are settings; all others are what the engine reported.
SETTINGS = frozenset(
    {
        *("max_model_len", "tp", "pp", "dcp", "dp", "dtype", "kv_cache_dtype", "block_size"),
        *("gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs", "swap_space_gib"),
        *("enable_prefix_caching", "mamba_cache_mode", "mamba_ssm_cache_dtype", "enforce_eager"),
        *("num_gpu_blocks_override", "num_speculative_tokens", "quantization"),
        *("kv_cache_memory_bytes", "page_size", "mem_fraction_static", "context_length"),
        *("max_running_requests", "max_total_tokens", "chunked_prefill_size", "speculative"),
        *("swa_full_tokens_ratio", "mamba_full_memory_ratio", "disable_radix_cache"),
        *("disable_cuda_graph", "n_ctx", "n_seq_max", "n_ubatch", "kv_unified", "flash_attention"),
        *("type_k", "type_v", "tokens_per_block", "max_seq_len", "max_num_requests"),
        *("max_num_tokens", "max_input_tokens", "max_batch_prefill_tokens"),
        *("max_concurrent_requests", "cuda_memory_fraction"),
    }
)
#: Facts that name the run and are neither; none of them is a figure.
ABOUT = frozenset(
    {
        *("model", "model_file", "engine_version", "build_number", "v1", "kv_given", "arguments"),
        "kv_device",
    }
)
#: What a log says without a figure.
_SAID = frozenset({"kv_scale_one", "random_keys", "component"})
#: Facts of what was served: endings of their names.
_TRAFFIC = ("_total", "_sum", "_count", "_mean", "_rate", "longest_tokens")
#: The names that cases have for engines.
_CASE_ENGINES = {"vllm": "vllm-v1"}


@dataclass(frozen=True, slots=True)
class Derived:
    """What the planner makes of a log.

    Attributes:
        checks: Each printed figure beside the planner's.
        fits: Inputs that the log does not state, with the value that explains it.
        reason: Why nothing could be derived; empty where something was.
        rule: The engine's rule that explains figures that look odd; empty for none.
    """

    checks: tuple[Check, ...] = ()
    fits: tuple[str, ...] = ()
    reason: str = ""
    rule: str = ""

    @property
    def agrees(self) -> bool:
        """Whether something was derived and all of it agrees."""
        return bool(self.checks) and all(check.agrees for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """What was derived as plain values with stable keys."""
        return {
            "agrees": self.agrees,
            "checks": [
                {
                    "name": check.name,
                    "printed": check.printed,
                    "derived": check.ours,
                    "agrees": check.agrees,
                }
                for check in self.checks
            ],
            "assumed": list(self.fits),
            "reason": self.reason,
            "rule": self.rule,
        }


def case_of(log: Log, options: Mapping[str, Value]) -> dict[str, Any]:
    """The case that a log's facts make.

    Args:
        log: The log.
        options: Settings that the log does not state, by the names of ``SETTINGS``.
    """
    values = dict(log.facts.values())
    flags = {name: value for name, value in values.items() if name in SETTINGS} | dict(options)
    reported = {
        name: value
        for name, value in values.items()
        if name not in SETTINGS | ABOUT | _SAID and ":" not in name and not name.endswith(_TRAFFIC)
    }
    if values.get("kv_device") == "CPU":
        flags.setdefault("block_size", CPU_BLOCK)
    if "arguments" in values:  # all that differ from the defaults were listed
        flags.setdefault("tp", 1)
    if values.get("kv_given"):
        flags.setdefault("kv_cache_memory_gib", reported.get("available_kv_gib", 0))
    _settle_graphs(reported)
    return {
        "id": "log",
        "engine": _CASE_ENGINES.get(log.engine, log.engine),
        "engine_version": _version(log, options),
        "model": values.get("model"),
        "flags": flags,
        "reported": reported,
    }


def _version(log: Log, options: Mapping[str, Value]) -> str:
    given = options.get("engine_version") or log.facts.word("engine_version")
    build = log.facts.count("build_number")
    return str(given) if given else f"b{build}" if build else ""


def _settle_graphs(reported: dict[str, Value]) -> None:
    """Of the graphs' estimate and their size, the one that the other figures rest on."""
    if "cuda_graph_estimate_gib" in reported and "graph_gib" in reported:
        del reported["graph_gib" if "available_kv_gib" in reported else "cuda_graph_estimate_gib"]


def derive(log: Log, spec: ModelSpec | None, options: Mapping[str, Value]) -> Derived:
    """Recompute a log's figures from the model and the settings.

    What kvhouse says of itself stands on the same core, so that there is nothing to compare.
    """
    if log.engine == "kvhouse":
        return Derived()
    case = case_of(log, options)
    try:
        verdict = judge(case, spec)
    except KvhouseError as problem:
        return Derived(reason=str(problem))
    return Derived(verdict.checks, verdict.fits, verdict.reason, _rule(log, spec, verdict.checks))


def _rule(log: Log, spec: ModelSpec | None, checks: tuple[Check, ...]) -> str:
    """The rule to name beside figures that agree and still surprise."""
    if any("another rank's" in check.ours for check in checks):
        return "fewest_blocks"
    facts = log.facts
    if log.engine == "vllm" and ("attn_block_size" in facts or "padding_layers" in facts):
        return "hybrid_tokens"
    if log.engine == "vllm" and spec is not None and len({type(x) for x in spec.layers}) > 1:
        return "hybrid_tokens"
    if log.engine == "sglang" and "k_size_gb" in facts:
        return "gb_are_gib"
    if log.engine == "tensorrt-llm" and "tokens" in facts:
        return "blocks_round_up"
    if log.engine == "llama.cpp" and "swa_cells" in facts:
        return "window_cells"
    return ""
