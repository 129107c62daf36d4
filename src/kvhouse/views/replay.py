"""Drives side by side: the figures of replays and runs, one column each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.replayer.results import Distribution, ReplayResult
from kvhouse.units import bytes_text, seconds_text
from kvhouse.views.tables import table

LEDGER_NAMES = {
    "used": "used by tokens",
    "shared": "shared by requests",
    "reserved": "reserved for later",
    "internal": "internal fragmentation",
    "external": "external fragmentation",
    "cached": "cached, free to take",
    "free": "free",
}


def show_results(console: Console, title: str, results: Sequence[ReplayResult]) -> None:
    """Print what became of the requests, then where the pool's bytes were."""
    heads = [result.pool.policy for result in results]
    timings = " and ".join(sorted({result.timing for result in results}))
    columns = [_figures(result) for result in results]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    console.print(table(f"{title} (times {timings})", ["", *heads], rows))
    console.print(table("Pool, mean over time", ["", *heads], _ledger_rows(results)))
    for result in results:
        show_rejections(console, result)


def show_rejections(console: Console, result: ReplayResult) -> None:
    """Name the first rejected request and its reason, and count the others."""
    if result.rejections:
        first, others = result.rejections[0], len(result.rejections) - 1
        text = f"{result.pool.policy}: request {first.index} rejected: {first.reason}"
        console.print(f"{text} (and {others:,} more)" if others else text, style="yellow")


def _figures(result: ReplayResult) -> dict[str, str]:
    pool = result.pool
    return {
        "requests finished": f"{result.finished:,} of {result.submitted:,}",
        "pool": f"{bytes_text(pool.bytes)} in {pool.blocks:,} blocks",
        "running at once, peak": f"{result.running.peak:,}",
        "running at once, mean": f"{result.running.mean:,.1f}",
        "waiting, mean": f"{result.waiting.mean:,.1f}",
        "preemptions": f"{result.preemptions:,}",
        "tokens recomputed": f"{result.recomputed_tokens:,}",
        "steps": f"{result.steps:,}",
        "time to first token, mean": _mean(result.first_token_seconds),
        "time to first token, p99": _p99(result.first_token_seconds),
        "time per output token, mean": _mean(result.per_token_seconds),
        "output tokens/s": f"{result.output_tokens_per_second:,.1f}",
        "makespan": seconds_text(result.makespan_seconds),
    }


def _ledger_rows(results: Sequence[ReplayResult]) -> list[list[str]]:
    rows = []
    for name in LEDGER_CLASSES:
        cells = [
            f"{bytes_text(round(r.ledger.mean_bytes[name]))}  {r.ledger.mean_share[name]:6.1%}"
            for r in results
        ]
        rows.append([LEDGER_NAMES[name], *cells])
    return rows


def _mean(distribution: Distribution | None) -> str:
    return seconds_text(distribution.mean) if distribution else "-"


def _p99(distribution: Distribution | None) -> str:
    return seconds_text(distribution.p99) if distribution else "-"
