"""Cases of SGLang, and of engines with one pool of blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvhouse.planner.engines.block_pools import POOLS, Pool, PoolOptions, block_pool
from kvhouse.planner.engines.cases.case import Case, Check, Missing
from kvhouse.planner.engines.cases.model import case_spec
from kvhouse.planner.engines.cases.span import Span
from kvhouse.planner.engines.cases.versions import sglang_versions
from kvhouse.planner.engines.cases.vllm import ranks
from kvhouse.planner.engines.kv_dtypes import PLAIN, SGLANG
from kvhouse.planner.engines.sglang import sglang
from kvhouse.planner.engines.sglang_options import SglangOptions
from kvhouse.planner.engines.view import EngineView
from kvhouse.spec.model import ModelSpec
from kvhouse.units import GIB, MIB

_ANY_LENGTH = 2**17
#: An engine without rules of its own.
_ANY_POOL = Pool("a pool of blocks", 16)


def sglang_open(case: Case) -> Mapping[str, Sequence[Any]]:
    """What SGLang's logs leave open."""
    page = case.size("page_size")
    inputs: dict[str, Sequence[Any]] = {
        "tp": ranks(case),
        "page_size": [page] if page else [1, 64, 128, 32, 16],
        "version": sglang_versions(case),
    }
    ratio = case.amount("swa_full_tokens_ratio", "swa_ratio")
    inputs["swa_ratio"] = [ratio] if ratio else [0.8, 1.0, 0.5, 0.25]
    return inputs


def sglang_case(case: Case) -> list[Check]:
    """Tokens from free memory, and bytes of every pool from tokens."""
    spec = case_spec(case)
    checks = _same_tokens(case)
    if spec is None:
        if checks:
            return checks
        raise Missing("config")
    options = _sglang_options(case)
    full = case.like("full", without="layers|ratio|attention")
    tokens = case.count(*full, "tokens", "max_total_num_tokens", "kv_tokens")
    checks += _sglang_tokens(case, spec, options)
    if tokens is None:
        return checks
    view = sglang(spec, _with_tokens(options, tokens))
    figures = dict(view.figures)
    if "swa_tokens" in figures:
        swa = Span.at(float(figures["swa_tokens"]))
        checks += case.any_check(case.like("swa", without="layers|ratio"), swa)
    for side in ("k", "v"):
        checks += _side_checks(case, figures, side)
    return checks + _sum_checks(case, figures) + _state_checks(case, figures)


def _side_checks(case: Case, figures: dict[str, int], side: str) -> list[Check]:
    """K or V: of each pool, or in a log of two pools of either or both."""
    checks = []
    both = [
        figures[f"{pool}{side}_bytes"]
        for pool in ("full_", "swa_", "")
        if f"{pool}{side}_bytes" in figures
    ]
    for pool in ("full", "swa"):
        if f"{pool}_{side}_bytes" in figures:
            ours = Span.at(figures[f"{pool}_{side}_bytes"] / GIB)
            checks += case.any_check(case.like(pool, side, unit="gib"), ours)
    names = case.like(side, unit="gib", without="full|swa|draft")
    return checks + case.one_of(names, [Span.at(count / GIB) for count in both])


def _sum_checks(case: Case, figures: dict[str, int]) -> list[Check]:
    """K and V together; of an MLA model's one buffer this is all that is printed."""
    names = case.like("kv|pool|usage", unit="gib", without="k|v|draft|full|swa|budget|available")
    names += case.like("swakvpool|swa", "usage|pool|mem", unit="gib")
    return case.any_check(tuple(dict.fromkeys(names)), Span.at(figures["kv_bytes"] / GIB))


def _sglang_options(case: Case) -> SglangOptions:
    dtype, stated = case.text("kv_cache_dtype", "kv_dtype"), case.text("dtype")
    if dtype is None and "fp8-kv" in case.arch:
        dtype = "fp8"
    return SglangOptions(
        version=case.assumed.get("version"),
        tp=case.assumed.get("tp", 1),
        dtype=stated if stated in SGLANG else None,
        kv_dtype=dtype or "auto",
        page_size=case.assumed.get("page_size", 1),
        context_length=case.size("context_length", "max_model_len") or _ANY_LENGTH,
        swa_ratio=case.assumed.get("swa_ratio", 0.8),
        mamba_ratio=case.amount("mamba_full_memory_ratio", "mamba_ratio") or 0.9,
    )


def _with_tokens(options: SglangOptions, tokens: int) -> SglangOptions:
    return replace(options, tokens=tokens)


def _sglang_tokens(case: Case, spec: ModelSpec, options: SglangOptions) -> list[Check]:
    """Tokens that the memory has room for, where all of it is stated."""
    fraction = case.amount("mem_fraction_static")
    loads = "load|loading|weights|weight"
    before = case.span(*case.like("before", loads, unit="gib"))
    after = case.span(*case.like("after", loads, unit="gib"))
    if fraction is None or before is None or after is None:
        return []

    def at(free_before: float, free_after: float) -> float:
        view = sglang(
            spec,
            replace(
                options,
                mem_fraction_static=fraction,
                free_before_bytes=int(free_before * GIB),
                free_after_bytes=int(free_after * GIB),
            ),
        )
        return float(view.kv_tokens or 0)

    ours = Span(at(before.high, after.low), at(before.low, after.high))
    return case.any_check(("tokens", "max_total_num_tokens", "full_tokens"), ours)


def _same_tokens(case: Case) -> list[Check]:
    """A draft model's pool has as many tokens as the model's own."""
    draft, tokens = case.reported("draft_pool"), case.count("tokens", "max_total_num_tokens")
    if not isinstance(draft, Mapping) or tokens is None or "tokens" not in draft:
        return []
    return [Check("draft_pool", str(draft["tokens"]), f"{tokens}", draft["tokens"] == tokens)]


def _state_checks(case: Case, figures: dict[str, int]) -> list[Check]:
    """Bytes of states for the number of slots that the log prints."""
    slots = case.count("max_mamba_cache_size", *case.like("mamba|state", "slots|size|cache"))
    if slots is None or "ssm_state_bytes" not in figures:
        return []
    checks = []
    for name, keys in (
        ("conv_state_bytes", case.like("conv", unit="gib")),
        ("ssm_state_bytes", case.like("ssm|temporal", unit="gib")),
    ):
        # Buffers hold one slot more than can be given out.
        least, most = figures[name] * slots / GIB, figures[name] * (slots + 1) / GIB
        checks += case.any_check(keys, Span(least, most))
    return checks


def pool_open(case: Case) -> Mapping[str, Sequence[Any]]:
    """What the logs of engines with one pool leave open."""
    return {"tp": ranks(case)}


def pool_case(case: Case) -> list[Check]:
    """Blocks from memory, tokens from blocks, bytes from either."""
    name = "tensorrt-llm" if case.engine == "trtllm" else case.engine
    pool = POOLS.get(name, _ANY_POOL)
    block = case.size("tokens_per_block", "block_size") or case.count("block_size")
    spec = case_spec(case)
    blocks = case.count("gpu_blocks", "kv_blocks", "blocks", "max_blocks")
    checks = _budget(case)
    if spec is None:
        size = block or pool.block_size
        if blocks is not None:
            tokens = Span.at(float((blocks - pool.kept_back) * size))
            checks += case.any_check(("kv_tokens", "tokens", "max_batch_total_tokens"), tokens)
        return checks
    dtype, stated = case.text("kv_cache_dtype", "kv_dtype"), case.text("dtype")
    options = PoolOptions(
        tp=case.assumed.get("tp", 1),
        pp=case.size("pp", "pipeline_parallel_size") or 1,
        dtype=stated if stated in PLAIN else None,
        kv_dtype=dtype or "auto",
        block_size=block,
        max_model_len=case.size("max_model_len", "max_seq_len", "max_input_len") or _ANY_LENGTH,
    )

    def at(blocks: int | None = None, memory: int | None = None) -> EngineView:
        return block_pool(pool, spec, replace(options, blocks=blocks, available_bytes=memory))

    return checks + _pool_checks(case, at, blocks)


def _pool_checks(
    case: Case, at: Callable[[int | None, int | None], EngineView], blocks: int | None
) -> list[Check]:
    checks = []
    memory = _memory(case)
    if memory is not None:
        ends = [at(None, int(edge)).blocks or 0 for edge in (memory.low, memory.high)]
        names = ("gpu_blocks", "blocks", "max_blocks", "kv_blocks")
        checks += case.any_check(names, Span(*map(float, ends)))
    if blocks is not None:
        view = at(blocks, None)
        usable = float(view.figure("usable_blocks"))
        checks += case.any_check(("usable_blocks",), Span.at(usable))
        tokens = Span.at(float(view.kv_tokens or 0))
        checks += case.any_check(("kv_tokens", "tokens", "max_batch_total_tokens"), tokens)
        checks += _bytes(case, view.figure("pool_bytes"))
    elif (tokens_stated := case.count("tokens", "kv_tokens", "max_tokens")) is not None:
        checks += _bytes(case, tokens_stated * at(None, None).figure("bytes_per_token"))
    return checks


def _bytes(case: Case, count: int) -> list[Check]:
    return [
        *case.any_check(("kv_bytes", "allocated_bytes"), Span.at(float(count))),
        *case.any_check(("allocated_gib", "kv_gib", "kv_cache_gib"), Span.at(count / GIB)),
        *case.any_check(("kv_mib", "allocated_mib"), Span.at(count / MIB)),
    ]


def _memory(case: Case) -> Span | None:
    """Bytes for the pool that the log prints."""
    gib = case.span("kv_budget_gib", "available_kv_gib")
    if gib is not None:
        return gib.scaled(GIB)
    mib = case.span("kv_budget_mib")
    if mib is not None:
        return mib.scaled(MIB)
    free = case.span(*case.like("free", unit="gib"))
    if free is None or case.engine not in ("tensorrt-llm", "trtllm"):
        return None
    fraction = case.amount("kv_cache_free_gpu_mem_fraction", "free_gpu_memory_fraction", "fraction")
    return free.scaled(GIB * (fraction or POOLS["tensorrt-llm"].fraction))


def _budget(case: Case) -> list[Check]:
    """A budget in MiB: utilization of the total, less what is in use, its peak and a margin."""
    total = case.span("total_mib")
    utilization = case.amount("gpu_memory_utilization")
    if total is None or utilization is None:
        return []
    budget = total.scaled(utilization)
    checks = case.any_check(("budget_mib",), budget)
    used = [case.span("initial_used_mib"), case.span("peak_non_kv_mib")]
    margin = case.count("margin_mib")
    if margin is not None and all(span is not None for span in used):
        for span in used:
            budget = budget - (span or Span.at(0))
        checks += case.any_check(("kv_budget_mib",), budget - Span.at(float(margin)))
    return checks
