"""Traffic of the tiers below the pool."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.tier_results import Amount, TierTraffic
from kvhouse.units import bytes_text
from kvhouse.views.tables import table

_COLUMNS = ("tier", "memory", "stored", "loaded", "declined", "evicted", "dropped", "failed")


def show_tiers(console: Console, results: Sequence[ReplayResult]) -> None:
    """Print one row for each tier: bytes, and the blocks that they are."""
    rows = [_row(traffic) for result in results if result.tiers for traffic in result.tiers.traffic]
    if rows:
        console.print(table("Tiers, bytes and blocks", _COLUMNS, rows))


def _row(tier: TierTraffic) -> tuple[str, ...]:
    amounts = (
        tier.capacity,
        tier.stored,
        tier.loaded,
        tier.declined,
        tier.evicted,
        tier.dropped,
        tier.failed,
    )
    return (tier.name, *(_text(amount) for amount in amounts))


def _text(amount: Amount) -> str:
    return f"{bytes_text(amount.bytes)}\n({amount.blocks:,})" if amount.blocks else "0"
