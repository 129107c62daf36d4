"""Memory budgets that vLLM prints: what it may use, and what is left for KV."""

from __future__ import annotations

from kvhouse.planner.engines.cases.case import Case, Check
from kvhouse.planner.engines.cases.span import Span, printed
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.vllm_v0 import SUGGESTION_MARGIN, kv_budget
from kvhouse.units import GIB

#: The estimate for CUDA graphs is counted by default from here on.
_GRAPHS = Version((0, 21, 0))


def budget_checks(case: Case) -> list[Check]:
    """The budget, the rest for KV, the suggestion, and memory that was given outright."""
    checks = _given(case)
    total = case.span("total_gpu_gib", *case.like("total", unit="gib"))
    utilization = case.amount("gpu_memory_utilization", "utilization")
    if total is None or utilization is None:
        return checks
    other = case.span(*case.like("nontorch|non", unit="gib", without="kv"))
    peak = case.span(*case.like("peak", "torch", unit="gib", without="non|activation"))
    used = [
        case.span(*case.like("weight|weights|loading", unit="gib")),
        other,
        case.span(*case.like("activation|activations", unit="gib")),
    ]
    if peak is not None:  # logs of 0.6 print the peak of all that torch holds, weights included
        used = [peak, other]
    budget, _ = _budget(total, utilization, [], Span.at(0))
    checks += case.any_check(case.like("budget|requested", unit="gib", without="kv"), budget)
    known = [span for span in used if span is not None]
    if len(known) < len(used):
        return checks
    graphs = case.span(*case.like("graph|graphs|cudagraph", unit="gib")) or Span.at(0)
    counted = case.assumed.get("graphs_counted")
    if counted is None:
        counted = Version.of(case.assumed.get("version")) >= _GRAPHS
    _, rest = _budget(total, utilization, known, graphs if counted else Span.at(0))
    checks += case.any_check(("kv_cache_gib", "available_kv_gib", "kv_gib"), rest)
    _, idle = _budget(total, utilization, known, graphs)
    margin = SUGGESTION_MARGIN / GIB
    suggested = (idle - Span.at(margin)).scaled(GIB)
    return checks + case.any_check(("suggested_kv_cache_memory",), suggested)


def _budget(total: Span, utilization: float, used: list[Span], graphs: Span) -> tuple[Span, Span]:
    """Both figures at the ends of the intervals: more memory or less in use leaves more."""
    most = kv_budget(total.high, utilization, [span.low for span in used], graphs.low)
    least = kv_budget(total.low, utilization, [span.high for span in used], graphs.high)
    return Span(least[0], most[0]), Span(least[1], most[1])


def _given(case: Case) -> list[Check]:
    """``--kv-cache-memory-bytes`` is taken as it is, past utilization and profiling."""
    for name, unit in (("kv_cache_memory_gib", 1), ("kv_cache_memory_bytes", GIB)):
        value = case.amount(name)
        if value is not None:
            return case.any_check(("available_kv_gib",), printed(name, value).scaled(1 / unit))
    return []
