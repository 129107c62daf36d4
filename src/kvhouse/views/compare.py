"""Several plans side by side."""

from __future__ import annotations

from rich.console import Console

from kvhouse.planner.compare import Comparison, ComparisonRow
from kvhouse.units import bytes_text
from kvhouse.views.tables import say_wrapped, table

_COLUMNS = ("model", "device", "KV", "weights", "per token", "each", "max", "paged", "tokens/s")
_DEVICE, _FORMAT = 1, 2


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print one row for each combination, and below it why others are impossible."""
    each = "their own context" if comparison.context is None else f"{comparison.context:,} tokens"
    rows = [_row(row) for row in comparison.rows if not row.error]
    if rows:
        of_all, columns = _shared(rows)
        title = (
            f"Requests of {each}{of_all}: contiguous-max and paged (exact), tokens/s at most "
            "(modelled)"
        )
        shown = [[row[place] for place in columns] for row in rows]
        heads = [_COLUMNS[place] for place in columns]
        console.print(table(title, heads, shown, names=1 + (_DEVICE in columns)))
    for row in comparison.rows:
        reason = row.error
        if row.missing_bytes:
            reason = f"does not fit: {bytes_text(row.missing_bytes)} missing"
        if reason:
            say_wrapped(console, f"{row.model} on {row.device} in {row.kv_format}: {reason}")


def _shared(rows: list[tuple[str, ...]]) -> tuple[str, list[int]]:
    """What all rows have alike, which the title says, and the columns that are left."""
    alike = [place for place in (_DEVICE, _FORMAT) if len({row[place] for row in rows}) == 1]
    words = {_DEVICE: " on ", _FORMAT: ", KV "}
    said = "".join(words[place] + rows[0][place] for place in alike)
    return said, [place for place in range(len(_COLUMNS)) if place not in alike]


def _row(row: ComparisonRow) -> tuple[str, ...]:
    requests = row.requests or {}
    return (
        row.model,
        row.device,
        row.kv_format,
        bytes_text(row.weight_bytes or 0),
        bytes_text(row.bytes_per_token or 0),
        bytes_text(row.request_bytes or 0),
        f"{requests.get('contiguous-max', 0):,}",
        f"{requests.get('paged', 0):,}",
        f"{row.tokens_per_second or 0:,.0f}",
    )
