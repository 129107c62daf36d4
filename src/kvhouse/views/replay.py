"""Drives side by side: the figures of replays and runs, one column each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.replayer.results import Distribution, ReplayResult
from kvhouse.units import bytes_text, counted, seconds_text
from kvhouse.views.ranks import ranks_text
from kvhouse.views.tables import table
from kvhouse.views.tiers import show_tiers

LEDGER_NAMES = {
    "used": "used by tokens",
    "shared": "shared by several requests",
    "reserved": "reserved for later",
    "internal": "internal fragmentation",
    "external": "external fragmentation",
    "cached": "free, with content to find",
    "free": "free",
}

#: Columns of a screen between two columns of a table.
_BETWEEN = 3


def show_results(console: Console, title: str, results: Sequence[ReplayResult]) -> None:
    """Print what became of the requests, then where the pool's bytes were."""
    heads = [head(result) for result in results]
    timings = " and ".join(sorted({result.timing for result in results}))
    formats = " and ".join(sorted({result.scenario["kv_format"] for result in results}))
    title = f"{title}, KV {formats} (times {timings})"
    if results[-1].partial:
        title = f"PARTIAL, ended early: {title}"
    for name, rows_of in ((title, _figure_rows), ("Pool, mean over time", _ledger_rows)):
        columns, rows = ["", *heads], rows_of(results, narrow=False)
        if _width([columns, *rows]) > console.width:
            columns, rows = ["", *map(_broken, heads)], rows_of(results, narrow=True)
        console.print(table(name, columns, rows))
    show_tiers(console, results)
    for text in dict.fromkeys(ranks_text(result.scenario) for result in results):
        if text:
            console.print(text)
    for result in results:
        show_rejections(console, result)


def show_rejections(console: Console, result: ReplayResult) -> None:
    """Name the first rejected request and its reason, and count the others."""
    if not result.rejections:
        return
    first, rejected = result.rejections[0], len(result.rejections)
    text = f"{result.pool.policy}: request {first.index} rejected: {first.reason}"
    if rejected == result.submitted:
        console.print(
            f"Not one request can be served, {rejected:,} of {rejected:,} are rejected. {text}",
            style="bold red",
        )
        return
    console.print(f"{text} (and {rejected - 1:,} more)" if rejected > 1 else text, style="yellow")


def head(result: ReplayResult) -> str:
    """A drive's policy, and what goes with it."""
    parts = [result.pool.policy]
    if result.prefix:
        parts.append("prefix cache")
    if result.tiers:
        parts += [tier.name for tier in result.tiers.traffic]
    return " + ".join(parts)


def _width(rows: Iterable[Sequence[str]]) -> int:
    """Columns of a screen that rows take."""
    return sum(max(map(len, column)) + _BETWEEN for column in zip(*rows, strict=True))


def _broken(head: str) -> str:
    """A drive's name in lines."""
    return head.replace(" + ", "\n+ ").replace("contiguous-", "contiguous\n")


def _figure_rows(results: Sequence[ReplayResult], *, narrow: bool) -> list[list[str]]:
    columns = [_figures(result, narrow=narrow) for result in results]
    names = dict.fromkeys(name for column in columns for name in column)
    return [[name, *(column.get(name, "-") for column in columns)] for name in names]


def _figures(result: ReplayResult, *, narrow: bool) -> dict[str, str]:
    pool, size = result.pool, bytes_text(result.pool.bytes)
    whole = {"pool": f"{size} in {counted(pool.blocks, 'block')}"}
    figures = {
        "requests finished": f"{result.finished:,} of {result.submitted:,}",
        **({"pool": size, "pool, blocks": f"{pool.blocks:,}"} if narrow else whole),
        "running, peak": f"{result.running.peak:,}",
        "running, mean": f"{result.running.mean:,.1f}",
        "waiting, mean": f"{result.waiting.mean:,.1f}",
        "preemptions": f"{result.preemptions:,}",
        "tokens recomputed": f"{result.recomputed_tokens:,}",
        "steps": f"{result.steps:,}",
        "first token, mean": _mean(result.first_token_seconds),
        "first token, p99": _p99(result.first_token_seconds),
        "per output token, mean": _mean(result.per_token_seconds),
        "output tokens/s": f"{result.output_tokens_per_second:,.1f}",
        "latency, p99": _p99(result.latency_seconds),
        "makespan": seconds_text(result.makespan_seconds),
    }
    if any((result.refusals.fragmented, result.refusals.watermark)):
        figures["refused with enough free"] = (
            f"{result.refusals.fragmented + result.refusals.watermark:,}"
        )
        figures["  of these: only in pieces"] = f"{result.refusals.fragmented:,}"
    if result.goodput:
        figures["met the SLO"] = f"{result.goodput.requests:,} ({result.goodput.share:.1%})"
        figures["goodput, requests/s"] = f"{result.goodput.requests_per_second:,.3g}"
    if result.prefix:
        figures["prompt tokens found"] = (
            f"{result.prefix.tokens:,} ({result.prefix.token_share:.1%})"
        )
        figures["saved by sharing, mean"] = bytes_text(round(result.prefix.saved_bytes))
    if result.tiers:
        prompt, resumed = result.tiers.prompt_tokens, result.tiers.resumed_tokens
        figures["prompt tokens loaded"] = f"{prompt:,} ({result.tiers.prompt_share:.1%})"
        figures["loaded after preemptions"] = f"{resumed:,}"
    return figures


def _ledger_rows(results: Sequence[ReplayResult], *, narrow: bool) -> list[list[str]]:
    rows, between = [], "\n" if narrow else "  "
    for name in LEDGER_CLASSES:
        if name in ("shared", "cached") and not any(r.ledger.mean_bytes[name] for r in results):
            continue  # without a prefix cache there is nothing of the kind
        cells = [
            f"{bytes_text(round(r.ledger.mean_bytes[name]))}{between}{r.ledger.mean_share[name]:6.1%}"
            for r in results
        ]
        rows.append([LEDGER_NAMES[name], *cells])
    return rows


def _mean(distribution: Distribution | None) -> str:
    return seconds_text(distribution.mean) if distribution else "-"


def _p99(distribution: Distribution | None) -> str:
    return seconds_text(distribution.p99) if distribution else "-"
