"""A trace on one screen."""

from __future__ import annotations

from rich.console import Console

from kvhouse.replayer.describe import Lengths, Repeats, TraceFigures
from kvhouse.units import seconds_text
from kvhouse.views.tables import table


def show_trace(console: Console, figures: TraceFigures) -> None:
    """Print what a trace is like, all of it exact."""
    title = f"{figures.trace} ({figures.format})"
    console.print(table(title, ["", ""], _facts(figures).items()))
    columns = ["tokens", "total", "mean", "p50", "p90", "p99", "max"]
    rows = [
        ["prompt", *_cells(figures.prompt_tokens)],
        ["output", *_cells(figures.output_tokens)],
        ["both", *_cells(figures.request_tokens)],
    ]
    console.print(table("Lengths", columns, rows))


def _facts(figures: TraceFigures) -> dict[str, str]:
    rate, cv = figures.requests_per_second, figures.gap_cv
    facts = {
        "requests": f"{figures.requests:,}",
        "duration": seconds_text(figures.duration_seconds),
        "requests/s, mean": "-" if rate is None else f"{rate:,.4g}",
        "variation of the gaps (0 even, 1 Poisson)": "-" if cv is None else f"{cv:.3g}",
    }
    counts = {
        "lines skipped: failed or without output": figures.skipped,
        "requests cut": figures.cut,
        "tenants": figures.tenants,
        "priorities": figures.priorities if figures.priorities > 1 else 0,
        "prefixes": figures.prefixes,
        "prefix tokens seen before": figures.repeated_prefix_tokens,
        "prompt tokens that the server had cached": figures.cached_tokens,
    }
    facts |= {name: f"{count:,}" for name, count in counts.items() if count}
    return facts | _repeats(figures.blocks)


def _repeats(blocks: Repeats) -> dict[str, str]:
    if blocks.repeated_share is None:
        return {}
    size = "various sizes" if blocks.hash_block is None else f"{blocks.hash_block:,} tokens"
    return {
        "blocks with an id": f"{blocks.prompt_blocks:,} in prompts, of {size}",
        "distinct ids": f"{blocks.distinct:,}",
        "prompt blocks seen before": f"{blocks.repeated:,} ({blocks.repeated_share:.2%})",
    }


def _cells(lengths: Lengths) -> list[str]:
    percentiles = (lengths.p50, lengths.p90, lengths.p99)
    return [
        f"{lengths.total:,}",
        f"{lengths.mean:,.1f}",
        *(f"{value:,.10g}" for value in percentiles),
        f"{lengths.max:,}",
    ]
