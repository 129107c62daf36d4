"""The planner's view of the server that wrote a log, and of the same server changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kvhouse.doctor.case import Derived
from kvhouse.doctor.facts import Value
from kvhouse.doctor.log import Log
from kvhouse.errors import KvhouseError
from kvhouse.planner.engines.registry import ENGINES, view
from kvhouse.planner.engines.view import EngineView
from kvhouse.planner.engines.vllm_options import CPU_BLOCK
from kvhouse.spec.model import ModelSpec

#: The planner's name of each setting, where it is another.
_OPTIONS = {
    "kv_cache_dtype": "kv_dtype",
    "enable_prefix_caching": "prefix_caching",
    "num_speculative_tokens": "speculative_tokens",
    "swa_full_tokens_ratio": "swa_ratio",
    "mamba_full_memory_ratio": "mamba_ratio",
    "kv_unified": "unified",
    "tokens_per_block": "block_size",
    "max_seq_len": "max_model_len",
    "gpu_memory_utilization": "utilization",
    "engine_version": "version",
}
#: Facts that are the bytes for KV on one rank, and the blocks or tokens of its pool.
_AVAILABLE = (
    "kv_cache_memory_bytes",
    "available_kv_gib",
    "kv_cache_gib",
    "allocated_gib",
    "kv_budget_mib",
)
_BLOCKS = ("gpu_blocks", "kv_blocks", "blocks")


@dataclass(frozen=True, slots=True)
class Planned:
    """A server by the planner's rules.

    Attributes:
        engine: A key of ``ENGINES``.
        spec: The model.
        options: The options of the engine that the log and the user state.
    """

    engine: str
    spec: ModelSpec
    options: Mapping[str, Any]

    @property
    def length(self) -> int:
        """The longest request that the server was started for, in tokens."""
        stated = self.options.get("max_model_len") or self.options.get("context_length")
        return int(stated or self.spec.max_length)

    def at(self, **changes: Any) -> EngineView | None:  # noqa: ANN401 - options of any engine
        """The view with some options changed; None where the planner cannot tell."""
        try:
            return view(self.engine, self.spec, **{**self.options, **changes})
        except KvhouseError:
            return None

    def requests(self, **changes: Any) -> Fraction | None:  # noqa: ANN401 - options of any engine
        """Requests of ``length`` that the pool holds at once with some options changed."""
        seen = self.at(**changes)
        if seen is None:
            return None
        if seen.max_concurrency is not None:
            return seen.max_concurrency
        return None if seen.kv_tokens is None else Fraction(seen.kv_tokens, self.length)


def planned(
    log: Log, spec: ModelSpec | None, derived: Derived, options: Mapping[str, Value]
) -> Planned | None:
    """The server of a log, or None where its model or engine is not known to the planner."""
    if spec is None or log.engine not in ENGINES:
        return None
    known = ENGINES[log.engine].option_names
    facts = log.facts
    stated = {**facts.values(), **dict(_assumed(derived)), **options}
    found: dict[str, Any] = {}
    for name, value in stated.items():
        option = _OPTIONS.get(name, name)
        if option in known and value not in ("auto", None):
            found[option] = value
    if log.engine == "sglang":
        found["tokens"] = facts.count("full_layer_tokens", "tokens", "max_total_num_tokens")
    elif log.engine != "llama.cpp":
        found |= _pool(log, known)
    if facts.word("kv_device") == "CPU":
        found.setdefault("block_size", CPU_BLOCK)
    return _in_bytes(Planned(log.engine, spec, found), known)


def _in_bytes(server: Planned, known: tuple[str, ...]) -> Planned:
    """The same server by its bytes for KV, so that another format or size of block gives others."""
    blocks = server.options.get("blocks")
    seen = server.at() if blocks and "available_bytes" in known else None
    if seen is None or not seen.pool_block_bytes:
        return server
    options = {name: value for name, value in server.options.items() if name != "blocks"}
    available = int(blocks or 0) * seen.pool_block_bytes
    return Planned(server.engine, server.spec, options | {"available_bytes": available})


def _pool(log: Log, known: tuple[str, ...]) -> dict[str, Any]:
    """Blocks that were asked for, else the pool's bytes where they are stated, else its blocks."""
    override = log.facts.count("num_gpu_blocks_override")
    if override and "blocks" in known:
        return {"blocks": override}
    available = log.facts.bytes(*_AVAILABLE)
    if available is not None and "available_bytes" in known:
        return {"available_bytes": max(0, available)}
    blocks = log.facts.count(*_BLOCKS)
    return {"blocks": blocks} if blocks is not None and "blocks" in known else {}


def _assumed(derived: Derived) -> list[tuple[str, Value]]:
    """Inputs that the log leaves open and that explain it, such as ``tp = 2``."""
    found: list[tuple[str, Value]] = []
    for text in derived.fits:
        name, equals, value = text.partition(" = ")
        if equals and name in ("tp", "version", "block_size", "page_size", "speculative_tokens"):
            found.append((name, int(value) if value.isdigit() else value))
    return found
