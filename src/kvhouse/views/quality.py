"""What KV formats cost in accuracy, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from kvhouse.views.tables import table

if TYPE_CHECKING:
    from kvhouse.engine.quality import Quality, QualityReport

_COLUMNS = (
    "KV format", "bytes/\ntoken", "\nperplexity", "\nchange", "KL\nmean", "KL\np99", "same\ntop 1"
)  # fmt: skip


def show_quality(console: Console, report: QualityReport) -> None:
    """Print a row for each variant, float32 first."""
    title = f"{report.model}: {report.tokens:,} tokens of {report.text}, measured"
    if report.partial:
        title = f"PARTIAL, ended early: {title}"
    console.print(table(title, _COLUMNS, (_row(each) for each in report.results), names=1))
    kernels = dict.fromkeys(each.kernel for each in report.results)
    console.print(
        f"Against keys and values in float32, in windows of {report.window:,} tokens. KL "
        f"divergence of the predictions in nats. Attention: {'; '.join(kernels)}. It holds for "
        "this model and this text; others can lose more.",
        soft_wrap=True,
    )


def _row(quality: Quality) -> tuple[str, ...]:
    return (
        quality.variant.name,
        f"{quality.bytes_per_token:,}",
        f"{quality.perplexity:.4f}",
        f"{quality.perplexity_change:+.3%}",
        f"{quality.kl_mean:.2g}",
        f"{quality.kl_p99:.2g}",
        f"{quality.top1_agreement:.2%}",
    )
