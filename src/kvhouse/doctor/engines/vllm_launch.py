"""What vLLM was started with.

Sources: vllm/v1/engine/core.py and vllm/engine/llm_engine.py ("Initializing … with config"),
vllm/entrypoints/utils.py ("non-default args"), vllm/config.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvhouse.doctor.facts import Value
from kvhouse.doctor.launch import fields, flags
from kvhouse.doctor.line import Read, line

#: In the engine's own words, and as its arguments.
_CONFIG = {
    "model": "model",
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "decode_context_parallel_size": "dcp",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "enforce_eager": "enforce_eager",
    "quantization": "quantization",
}
_ARGUMENTS = {
    "model": "model",
    "model_tag": "model",
    "dtype": "dtype",
    "max_model_len": "max_model_len",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "decode_context_parallel_size": "dcp",
    "kv_cache_dtype": "kv_cache_dtype",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "block_size": "block_size",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "enable_prefix_caching": "enable_prefix_caching",
    "mamba_cache_mode": "mamba_cache_mode",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "num_speculative_tokens": "num_speculative_tokens",
    "swap_space": "swap_space_gib",
    "enforce_eager": "enforce_eager",
    "quantization": "quantization",
}
_FLAGS = {
    f"--{name.replace('_', '-')}": fact
    for name, fact in _ARGUMENTS.items()
    if name not in ("model_tag", "num_speculative_tokens")
} | {"-tp": "tp", "-pp": "pp"}
_config, _arguments, _flags = fields(_CONFIG), fields(_ARGUMENTS), flags(_FLAGS)
_DRAFTED = re.compile(r"num_spec(?:ulative)?_tokens['\"]?[=:] ?(\d{1,4})")


def _engine(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    if match[1]:
        yield "v1", True, match[0]
    if match[2]:
        yield "engine_version", match[2], match[0]
    yield from _config(match, memory)
    drafted = _DRAFTED.search(match.string, match.start())
    if drafted:
        yield "num_speculative_tokens", int(drafted[1]), drafted[0]


def _command(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    if match[1] and not match[1].startswith("-"):
        yield "model", match[1].strip("'\""), match[0]
    yield from _flags(match, memory)


VLLM_LAUNCH = (
    line(
        "vllm",
        "with config: model=",
        "LLM engine",
        r"Initializing an? (V1 )?LLM engine (?:\(v([\w.+\-]{1,40})\) )?with config: ",
        reading=_engine,
        starts=True,
    ),
    line(
        "vllm",
        "non-default args",
        "",
        r"non-default args: ",
        reading=_arguments,
        sets={"arguments": True},
        starts=True,
    ),
    line(
        "vllm",
        "vLLM API server version",
        "",
        r"vLLM API server version ([\d.]{1,16})",
        "engine_version",
        starts=True,
    ),
    line(
        "vllm",
        "vllm serve ",
        "",
        # A path, a name with more than letters, or options; not a sentence about the command.
        r"\bvllm serve (?=[A-Za-z]{0,64}[^A-Za-z\s])([^\s\\]{0,200})",
        reading=_command,
    ),
    line(
        "vllm",
        "vllm.entrypoints",
        "",
        r"vllm\.entrypoints\.(?:openai\.)?api_server()(?= )",
        reading=_command,
    ),
    line("vllm", "max model len ", "", r"Using max model len <N>", "max_model_len"),
    line(
        "vllm",
        "max_num_batched_tokens=",
        "Chunked prefill is enabled",
        r"Chunked prefill is enabled with max_num_batched_tokens=<N>",
        "max_num_batched_tokens",
    ),
)
