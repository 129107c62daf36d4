"""What a bench measured, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from kvhouse.units import bytes_text, seconds_text
from kvhouse.views.tables import table, visible

if TYPE_CHECKING:
    from kvhouse.bench.results import LoadResult
    from kvhouse.bench.row_result import Rate, RowResult
    from kvhouse.replayer.results import Distribution

_PARTS = ("model", "attention", "kv_writes", "sampling", "scheduling")


def show_row(console: Console, model: str, result: RowResult) -> None:
    """Print a batch: its rates, a step's parts, and its bytes beside the machine's limit."""
    title = (
        f"{model}: {result.concurrency} × ({result.prompt:,} in, {result.generate:,} out), "
        f"{result.dtype}, {result.kv_format} KV, {result.policy}; measured, {result.repeats} passes"
    )
    rows = [
        ("prefill, tokens/s", *_rate(result.prefill_tokens_per_second)),
        ("decode, tokens/s", *_rate(result.decode_tokens_per_second)),
    ]
    console.print(table(title, ("", "median", "least", "most"), rows))
    console.print(f"Computed: {result.paths.line()}", soft_wrap=True)
    first = result.first_token_seconds
    if first:
        console.print(
            f"First token after {seconds_text(first.mean)} on average, {seconds_text(first.max)} "
            "at most.",
            soft_wrap=True,
        )
    step, moved = result.decode_step, result.decode_bytes
    if step is None or moved is None:
        console.print("Too few steps decoded all: give a larger --generate.", soft_wrap=True)
        return
    parts = [(name, getattr(step, name)) for name in _PARTS]
    console.print(
        table(
            f"A decode step in parts, mean of {step.steps:,}",
            ("part", "time", "share"),
            [
                (
                    name.replace("_", " "),
                    "in the model" if value is None else seconds_text(value),
                    "" if value is None else f"{value / step.seconds:.1%}",
                )
                for name, value in (*parts, ("all", step.seconds))
            ],
        )
    )
    console.print(
        f"Not split, it takes {seconds_text(moved.seconds)} and reads "
        f"{bytes_text(round(moved.weights))} of weights and {bytes_text(round(moved.kv))} of KV: "
        f"{moved.bytes_per_second / 1e9:.1f} GB/s, {moved.share_of_bandwidth:.0%} of the "
        f"{result.bandwidth / 1e9:.1f} GB/s that this machine's cores read (measured). The floor "
        f"of such a step is {seconds_text(moved.floor_seconds)}, set by {moved.bound}: "
        f"{moved.share_of_floor:.0%} of the step.",
        soft_wrap=True,
    )


def show_load(console: Console, result: LoadResult) -> None:
    """Print a load: what came of its requests, and how long they took."""
    loop = "open loop" if result.concurrency is None else f"{result.concurrency} senders"
    title = f"{result.submitted:,} requests of {result.trace} to {result.about['target']}, {loop}"
    spans = (
        ("first token (TTFT)", result.first_token_seconds),
        ("per token (TPOT)", result.per_token_seconds),
        ("between tokens", result.between_tokens_seconds),
        ("latency", result.latency_seconds),
        ("sent late by", result.lag_seconds),
    )
    rows = [(name, *_spans(distribution)) for name, distribution in spans]
    console.print(table(title, ("measured", "mean", "p50", "p90", "p99", "most"), rows))
    lines = [
        f"{result.output_tokens_per_second:,.1f} tokens/s, {result.requests_per_second:,.3g} "
        f"requests/s over {seconds_text(result.makespan_seconds)}; {result.running.mean:.1f} under "
        f"way on average, {result.running.peak:,} at most.",
        f"{result.finished:,} answered, {result.failed:,} failed, {result.unfinished:,} cut off"
        + (
            f"; {result.output_tokens:,} tokens ({_counted(result.token_counts)})."
            if result.finished
            else "."
        ),
    ]
    if result.shorter:
        lines.append(f"{result.shorter:,} answers ended before they were as long as asked.")
    if result.goodput:
        lines.append(f"{result.goodput.share:.1%} met the SLO.")
    lines += [f"{one.requests:,} × {one.kind}: {one.reason}" for one in result.errors]
    for line in lines:
        console.print(visible(line), soft_wrap=True, markup=False)


def _rate(rate: Rate | None) -> tuple[str, str, str]:
    if rate is None:
        return "", "", ""
    return f"{rate.median:,.1f}", f"{rate.min:,.1f}", f"{rate.max:,.1f}"


def _spans(one: Distribution | None) -> tuple[str, ...]:
    if one is None:
        return ("",) * 5
    return tuple(map(seconds_text, (one.mean, one.p50, one.p90, one.p99, one.max)))


def _counted(who: str) -> str:
    words = {"usage": "counted by the target", "pieces": "one for each piece that came"}
    return words.get(who, "some counted by the target, some by pieces")
