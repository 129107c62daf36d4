"""Which cells of a sweep are best."""

from __future__ import annotations

from collections.abc import Iterable

from kvhouse.errors import KvhouseError
from kvhouse.replayer.sweep.row import Row

#: By what rows can be ordered: the figure, and whether more of it is better.
SORTS = {
    "goodput": ("goodput_requests_per_second", True),
    "tokens": ("output_tokens_per_second", True),
    "requests": ("requests_per_second", True),
    "ttft": ("first_token_seconds_p99", False),
    "tpot": ("per_token_seconds_p99", False),
    "latency": ("latency_seconds_p99", False),
}


def sorting(name: str | None, *, with_slo: bool) -> str:
    """One of ``SORTS``; by default goodput where there is an SLO, else tokens.

    Raises:
        KvhouseError: An unknown one, or goodput without an SLO.
    """
    if name is None:
        return "goodput" if with_slo else "tokens"
    if name not in SORTS:
        raise KvhouseError(f"sort {name!r}: choose one of {', '.join(SORTS)}")
    if name == "goodput" and not with_slo:
        raise KvhouseError("goodput needs an SLO: say what requests must meet")
    return name


def ranked(rows: Iterable[Row], sort: str) -> list[Row]:
    """Rows with the figure, best first, then the others in their order."""
    figure, more = SORTS[sort]

    def place(row: Row) -> tuple[bool, float]:
        value = getattr(row, figure)
        return (True, 0.0) if value is None else (False, -value if more else value)

    return sorted(rows, key=place)
