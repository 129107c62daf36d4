"""Cases of vLLM's logs, of both engines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvhouse.planner.engines.cases.budget import budget_checks
from kvhouse.planner.engines.cases.case import Case, Check, Missing
from kvhouse.planner.engines.cases.model import case_spec, draft_counts, draft_layers
from kvhouse.planner.engines.cases.span import Span
from kvhouse.planner.engines.cases.versions import vllm_versions
from kvhouse.planner.engines.cases.vllm_pool import AVAILABLE, longest, pool_checks
from kvhouse.planner.engines.kv_dtypes import VLLM
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.view import EngineView, longest_that_fits
from kvhouse.planner.engines.vllm_options import TOKENS_BY_CONCURRENCY, VllmOptions
from kvhouse.planner.engines.vllm_v0 import vllm_v0
from kvhouse.planner.engines.vllm_v1 import vllm_v1
from kvhouse.spec.layers import ChunkedAttention, SlidingAttention, State
from kvhouse.spec.model import ModelSpec
from kvhouse.units import GIB

_RANKS = (1, 2, 4, 8, 16)
#: A length to lay pages out with where the case states none; no figure that depends on it is made.
_ANY_LENGTH = 2**17
#: More blocks than any pool has.
_MANY = 2**40


def v0_open(case: Case) -> Mapping[str, Sequence[Any]]:
    """What V0 logs leave open."""
    return {"version": vllm_versions(case), "tp": ranks(case)}


def ranks(case: Case) -> Sequence[int]:
    """Tensor parallel sizes that may have been used."""
    stated = case.size("tp", "tensor_parallel_size", "tp_size")
    if stated is not None:
        return [stated]
    return [1] if case.one_device else _RANKS


def v1_open(case: Case) -> Mapping[str, Sequence[Any]]:
    """What V1 logs leave open, as far as the model's kinds depend on it."""
    inputs: dict[str, Sequence[Any]] = {"version": vllm_versions(case), "tp": ranks(case)}
    inputs["speculative_tokens"] = _drafted(case)
    if tuple(inputs["speculative_tokens"]) != (0,):
        inputs["draft_layers"] = draft_counts(case)
    if case.like("graph|graphs|cudagraph", unit="gib"):
        inputs["graphs_counted"] = [None, True, False]
    block = case.size("block_size", "page_size")
    inputs["block_size"] = [block] if block else [None, 32, 64, 128, 256]
    try:
        spec = case_spec(case)
    except Missing:
        return inputs
    parts = [part for layer in spec.layers for part in layer.parts] if spec else []
    if any(isinstance(part, State) for part in parts):
        inputs["block_size"] = [block]
        stated = case.flag("enable_prefix_caching", "prefix_caching")
        inputs["prefix_caching"] = [False, True] if stated is None else [bool(stated)]
        inputs["kernel_block"] = [None, 32, 64, 128]
    if any(isinstance(part, SlidingAttention | ChunkedAttention) for part in parts):
        batched = case.size("max_num_batched_tokens")
        inputs["max_num_batched_tokens"] = [batched] if batched else [2048, 8192, 16384, 4096]
        inputs["hybrid"] = [case.flag("hybrid_kv_cache_manager"), False, True]
    return inputs


def _drafted(case: Case) -> Sequence[int]:
    """Tokens drafted per step: stated by a flag or in the model's name, or open."""
    stated = case.flag("num_speculative_tokens", "speculative_tokens", "n_spec")
    if isinstance(stated, int):
        return [stated]
    text = f"{case.flag('speculative') or ''} {case.model}"
    found = re.search(r"\bn(?:_spec)?\s*=\s*(\d+)", text)
    if found:
        return [int(found[1])]
    if case.flag("speculative") is None and "speculative" not in case.arch:
        return [0]
    return range(1, 9)


def vllm_options(case: Case, spec: ModelSpec) -> VllmOptions:
    """The engine's options: flags as stated, and what is tried for others."""
    assumed = case.assumed
    dtype = case.text("kv_cache_dtype", "kv_dtype")
    if dtype is None and "fp8-kv" in case.arch:
        dtype = "fp8"
    drafted = assumed.get("speculative_tokens", 0)
    batched = assumed.get("max_num_batched_tokens") or case.size("max_num_batched_tokens")
    computes = case.text("dtype")
    return VllmOptions(
        version=assumed.get("version"),
        tp=assumed.get("tp", 1),
        pp=case.size("pp", "pipeline_parallel_size") or 1,
        dcp=case.size("dcp", "decode_context_parallel_size") or 1,
        dtype=computes if computes in (*VLLM, "auto") else None,
        kv_dtype=dtype or "auto",
        state_dtype=case.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
        block_size=assumed.get("block_size"),
        kernel_block=assumed.get("kernel_block"),
        max_model_len=longest(case) or _ANY_LENGTH,
        max_num_batched_tokens=batched,
        prefix_caching=assumed.get("prefix_caching", False),
        mamba_cache_mode=case.text("mamba_cache_mode"),
        speculative_tokens=drafted,
        draft_layers=draft_layers(spec, assumed.get("draft_layers", 0)) if drafted else (),
        hybrid=assumed.get("hybrid"),
        swap_bytes=int((case.amount("swap_space_gib", "swap_space") or 4) * GIB),
    )


def v0_case(case: Case) -> list[Check]:
    """Budget, blocks on both sides, tokens, concurrency, and whether the engine starts."""
    runs = _runs(case)
    if runs:
        return [check for run in runs for check in v0_case(run)]
    checks = budget_checks(case)
    spec = case_spec(case)
    if spec is None:
        return checks + _without_model(case)
    options = vllm_options(case, spec)

    view = vllm_v0(spec, options)
    cpu = Span.at(float(view.figure("cpu_blocks")))
    return [*checks, *case.any_check(("cpu_blocks",), cpu), *pool_checks(case, view)]


def v1_case(case: Case) -> list[Check]:
    """Pages, needed memory, the estimate of length, tokens and concurrency; each run by itself."""
    runs = _runs(case)
    if runs:
        return [check for run in runs for check in v1_case(run)]
    checks = budget_checks(case)
    spec = case_spec(case)
    if spec is None:
        return checks + _without_model(case)
    options = vllm_options(case, spec)

    view = vllm_v1(spec, options)
    return [*checks, *_pages(case, view), *_needed(case, view), *pool_checks(case, view)]


def _runs(case: Case) -> list[Case]:
    """The runs of a thread that reports several, each with flags of its own; else none."""
    runs = case.reported("runs")
    if not isinstance(runs, list):
        return []
    return [
        replace(
            case,
            values={**case.values, "flags": {**case.part("flags"), **run}, "reported": run},
        )
        for run in runs
        if isinstance(run, Mapping) and "runs" not in run
    ]


def _pages(case: Case, view: EngineView) -> list[Check]:
    """Blocks and padding that the engine logs for hybrids."""
    figures = dict(view.figures)
    names = ("block_tokens", *case.like("attn|attention", "block"))
    checks = case.any_check(names, Span.at(float(view.block_size)))
    if "state_bytes" in figures:
        state, padded = figures["state_bytes"], figures["state_padded_bytes"]
        share = Span.at(100 * (padded - state) / state)
        checks += case.any_check(case.like("mamba", "padding"), share)
        checks += case.any_check(("mamba_page_bytes", "state_bytes"), Span.at(float(state)))
        checks += case.any_check(("page_bytes",), Span.at(float(padded)))
    checks += case.any_check(("kv_groups", "num_groups"), Span.at(float(figures["groups"])))
    padding = _padding(view)
    stated = case.count("padding_layers")
    if stated is not None:
        share = padding.get(stated, Span.at(-1.0))
        shown = ", ".join(map(str, padding)) or "none"
        checks.append(Check("padding_layers", str(stated), shown, stated in padding))
        checks += case.any_check(("padding_pct",), share)
    return checks


def _padding(view: EngineView) -> dict[int, Span]:
    """Padding layers by kind, with their share of the kind's layers in percent."""
    totals: dict[str, tuple[int, int]] = {}
    for group in view.groups:
        padding, layers = totals.get(group.name, (0, 0))
        totals[group.name] = (padding + group.padding, layers + group.layers)
    return {p: Span.at(100 * p / n) for p, n in totals.values() if p}


def _needed(case: Case, view: EngineView) -> list[Check]:
    """Memory that one request needs, and the longest that the engine estimates to fit."""
    length = longest(case)
    if length is None:
        return []
    needed = view.needed_bytes(length)
    names = case.like("needed|need|required", unit="gib")
    checks = case.any_check(names, Span.at(needed / GIB))
    available = case.span(*AVAILABLE)
    if available is None:
        return checks
    if case.reported("error") == "need>avail":
        text = f"{needed / GIB:.2f} GiB needed"
        checks.append(Check("error", "need>avail", text, needed / GIB > available.low))
    stated = case.count("estimated_max_len", "estimated_max_model_len")
    if stated is not None:
        ends = [
            longest_that_fits(view.needed, int(edge * GIB), length)
            for edge in (available.low, available.high)
        ]
        stops = stated == length or view.needed(stated) < view.needed(stated + 1)
        agrees = ends[0] <= stated <= ends[1] and stops
        text = str(Span(*map(float, ends)))
        checks.append(Check("estimated_max_len", f"{stated:,}", text, agrees))
    return checks


def _without_model(case: Case) -> list[Check]:
    """What follows without a config: blocks times their size, and tokens over length."""
    checks = []
    blocks, block = case.count("gpu_blocks"), case.size("block_size")
    if blocks is not None and block is not None:
        checks += case.any_check(("kv_tokens",), Span.at(float(blocks * block)))
    tokens, length = case.count("kv_tokens"), longest(case)
    hybrid = any("hybrid" in tag for tag in case.arch)
    late = Version.of(case.assumed.get("version")) >= TOKENS_BY_CONCURRENCY
    if tokens is not None and length and (late or not hybrid):
        # Later versions print int(concurrency * length), so concurrency is up to a token more.
        most = (tokens + 1 if late else tokens) / length
        checks += case.any_check(("max_concurrency",), Span(tokens / length, most))
    return checks
