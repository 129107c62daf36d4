"""The pool of a vLLM log: blocks, tokens and concurrency, from its memory or its blocks."""

from __future__ import annotations

from kvhouse.planner.engines.cases.case import Case, Check, Missing
from kvhouse.planner.engines.cases.span import Span
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.view import EngineView
from kvhouse.planner.engines.vllm_options import TOKENS_BY_CONCURRENCY
from kvhouse.units import GIB

#: More blocks than any pool has.
_MANY = 2**40
#: Names of the memory for KV on one rank.
AVAILABLE = (
    "available_kv_gib",
    "available_kv_gb_approx",
    "available_gib",
    "kv_cache_gib",
    "kv_cache_gib_rank_printed",
)


def longest(case: Case) -> int | None:
    """The longest request that the engine was started for, in tokens; None where not stated."""
    return case.size("max_model_len", "max_seq_len", "context_length") or case.count(
        "max_model_len"
    )


def pool_checks(case: Case, view: EngineView) -> list[Check]:
    """Tokens and concurrency of the pool, from its blocks or from the memory for it."""
    low, high = _block_range(case, view)
    length = longest(case)
    checks = _blocks_of_memory(case, view)
    if length is None and _by_length(case):
        raise Missing("max_model_len")
    tokens = case.span(*_names(case))
    if tokens is not None:
        low, high, check = _tokens(case, view, low, high, tokens)
        checks.append(check)
    if length is not None and high < _MANY:
        concurrency = Span(_concurrency(view, low), _concurrency(view, high))
        checks += case.any_check(("max_concurrency", "concurrency"), concurrency)
    if case.reported("error") == "max_seq_len>kv_tokens" and length and tokens is not None:
        text = f"{length:,} > {tokens}"
        checks.append(Check("error", "max_seq_len>kv_tokens", text, length > tokens.high))
    return checks


def _names(case: Case) -> tuple[str, ...]:
    """Names of the tokens that the log prints of the whole pool."""
    return case.like("tokens", without="cpu|per|pinned|request|batched|before|after|prompt|block")


def _by_length(case: Case) -> bool:
    """Whether printed tokens depend on the length that was asked for."""
    late = Version.of(case.assumed.get("version")) >= TOKENS_BY_CONCURRENCY
    return late and case.span(*_names(case)) is not None and not _is_v0(case)


def _is_v0(case: Case) -> bool:
    return case.engine.startswith("vllm-v0")


def _block_range(case: Case, view: EngineView) -> tuple[int, int]:
    """Blocks that are stated, or that the printed memory has room for, or any number."""
    blocks = case.count("gpu_blocks", "num_gpu_blocks", "num_blocks")
    blocks = case.size("num_gpu_blocks_override") if blocks is None else blocks
    if blocks is not None:
        return blocks, blocks
    return _room(case, view) or (0, _MANY)


def _room(case: Case, view: EngineView) -> tuple[int, int] | None:
    """The fewest and most blocks that the printed memory may have room for."""
    available = case.span(*AVAILABLE)
    if available is None:
        return None
    size = view.pool_block_bytes
    return int(available.low * GIB) // size, int(available.high * GIB) // size


def _blocks_of_memory(case: Case, view: EngineView) -> list[Check]:
    """Blocks beside the memory for them; on several ranks, of those only the fewest count."""
    blocks, room = case.count("gpu_blocks", "num_gpu_blocks"), _room(case, view)
    if blocks is None or room is None or case.size("num_gpu_blocks_override"):
        return []
    ranks_differ = case.assumed.get("tp", 1) > 1
    agrees = (ranks_differ or room[0] <= blocks) and blocks <= room[1]
    return [Check("gpu_blocks", f"{blocks:,}", str(Span(*map(float, room))), agrees)]


def _tokens(
    case: Case, view: EngineView, low: int, high: int, stated: Span
) -> tuple[int, int, Check]:
    """Whether some number of blocks prints the tokens, and which numbers do."""
    shown = str(case.reported(*_names(case)))
    first = _first_block(view, 0, _MANY, stated.low)
    last = _first_block(view, 0, _MANY, stated.high + 1) - 1
    memory = f"{first * view.pool_block_bytes / GIB:.4f} GiB"
    if last < first:
        near = f"{_count(view, first - 1):,} or {_count(view, first):,}"
        return low, high, Check("kv_tokens", shown, near, False)
    least, most = max(low, first), min(high, last)
    if high == _MANY:
        text = f"{_count(view, first):,} of {first:,} blocks, {memory}; memory is not stated"
        return first, last, Check("kv_tokens", shown, text, True)
    if least <= most:
        text = str(Span(float(_count(view, low)), float(_count(view, high))))
        return least, most, Check("kv_tokens", shown, f"{text} ({least:,} blocks)", True)
    spread = case.assumed.get("tp", 1) > 1
    explained = spread and first < low and case.part("check").get("agree") != "exact"
    text = f"{_count(view, low):,} to {_count(view, high):,}"
    if explained:
        text = f"{memory}: the fewest blocks of any rank; the printed memory is another rank's"
    return first, last, Check("kv_tokens", shown, text, explained)


def _first_block(view: EngineView, low: int, high: int, tokens: float) -> int:
    """The fewest blocks that print at least so many tokens."""
    while low < high:
        middle = (low + high) // 2
        if _count(view, middle) >= tokens:
            high = middle
        else:
            low = middle + 1
    return low


def _count(view: EngineView, blocks: int) -> int:
    return view.capacity(blocks)[0] if view.capacity else 0


def _concurrency(view: EngineView, blocks: int) -> float:
    return float(view.capacity(blocks)[1]) if view.capacity else 0.0
