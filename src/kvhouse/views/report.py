"""A plan and what was asked beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from kvhouse.units import bytes_text, seconds_text
from kvhouse.views.plan import show_plan
from kvhouse.views.tables import table

if TYPE_CHECKING:  # rules of engines and the like that a plan may not have been asked for
    from kvhouse.planner.engines import EngineView
    from kvhouse.planner.grid import Grid
    from kvhouse.planner.remedies import Remedies, Remedy
    from kvhouse.planner.report import Report
    from kvhouse.planner.traffic import Load, PolicyLoad

#: Remedies that are shown; JSON has them all.
_SHOWN = 6


def show_report(console: Console, report: Report) -> None:
    """Print the plan, and a part for each question."""
    show_plan(console, report.plan)
    if report.traffic:
        _show_traffic(console, report.traffic)
    if report.grid:
        _show_grid(console, report.grid)
    if report.engine:
        _show_engine(console, report.engine, report.plan.context)
    if report.remedies:
        _show_remedies(console, report.remedies, short=report.plan.budget.missing > 0)


def _show_remedies(console: Console, remedies: Remedies, *, short: bool) -> None:
    """Print what helps; where weights and KV memory are ``short`` of room, what makes them fit."""
    fitting = [one for one in remedies.ranked if not one.missing_bytes]
    # A shared prefix is tried only where it was named, so it is answered wherever it ranks.
    asked = [one for one in fitting[_SHOWN:] if one.name == "prefix sharing"]
    pair = remedies.combination
    shown = [*fitting[:_SHOWN], *asked, *([pair] if pair and not pair.missing_bytes else [])]
    if shown:
        what = (
            f"What makes it fit, {remedies.policy}"
            if short
            else f"What would help {remedies.policy}"
        )
        title = f"{what} (ranked by requests gained; --json has the price)"
        columns = ("remedy", "each saves", "requests", "tokens/s", "accuracy", "count")
        console.print(table(title, columns, (_remedy(remedy) for remedy in shown)))
    else:
        gain = "makes it fit" if short else "gains a request"
        console.print(f"No remedy {gain}; --json says why for each.")
    if left := [one.name for one in remedies.ranked if one.missing_bytes]:
        console.print(f"It still does not fit with any of these alone: {', '.join(left)}.")
    if shown and remedies.offload:
        console.print(f"Offload to the host, loading is {remedies.offload.text} (floors).")


def _remedy(remedy: Remedy) -> tuple[str, ...]:
    from kvhouse.planner.remedies.prices import standing

    return (
        remedy.name,
        bytes_text(remedy.bytes_saved) if remedy.bytes_saved else "-",
        f"{remedy.requests_after:,} ({remedy.gained:+,})",
        f"{remedy.tokens_per_second_after:,.0f}",
        standing(remedy.accuracy),
        remedy.basis,
    )


def _show_traffic(console: Console, load: Load) -> None:
    title = f"Traffic: {load.rate:,.3g} requests/s (modelled by Little's law, {load.basis} rate)"
    rows = [
        ("prompt and output tokens, mean", f"{load.prompts.mean:,.0f}, {load.outputs.mean:,.0f}"),
        ("use of what the device can do", f"{load.utilisation:.1%}"),
    ]
    if load.stay_seconds is not None and load.mean_batch is not None:
        rows += [
            ("time in system", seconds_text(load.stay_seconds)),
            ("batch, mean and p99", f"{load.mean_batch:,.1f}, {_count(load.p99_batch)}"),
            ("KV of the mean batch", bytes_text(load.kv_bytes_mean or 0)),
        ]
    console.print(table(title, ("", "value"), rows))
    if load.overloaded:
        console.print(f"The device is {load.overloaded}", style="bold red")
        return
    columns = ("policy", "fit at once", "mean fits", "p99 fits", "largest rate/s", "for p99")
    console.print(table("", columns, (_policy(policy) for policy in load.policies)))


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _policy(policy: PolicyLoad) -> tuple[str, ...]:
    return (
        policy.policy,
        f"{policy.requests:,}",
        "yes" if policy.fits_mean else "no",
        "yes" if policy.fits_p99 else "no",
        f"{policy.largest_rate:,.3g}",
        f"{policy.largest_rate_p99:,.3g}",
    )


def _show_grid(console: Console, grid: Grid) -> None:
    title = "Decode ceiling, tokens/s in all (modelled; * does not fit, c bound by compute)"
    columns = ("tokens each", *(f"{batch:,}" for batch in grid.batches))
    rows = (
        (f"{length:,}", *(_cell(grid, row, column) for column in range(len(grid.batches))))
        for row, length in enumerate(grid.lengths)
    )
    console.print(table(title, columns, rows))


def _cell(grid: Grid, row: int, column: int) -> str:
    marks = "c" * grid.compute_bound[row][column] + "*" * (not grid.fits[row][column])
    return f"{grid.tokens_per_second[row][column]:,.0f}{marks}"


def _show_engine(console: Console, view: EngineView, context: int) -> None:
    title = f"{view.engine} {view.version}: what it sets aside for {context:,} tokens"
    columns = ("layers", "padding", "block", "block bytes", "reserved")
    rows = (
        (
            f"{group.layers} {group.name}",
            f"{group.padding}",
            f"{group.block_size:,}",
            f"{group.block_bytes:,}",
            bytes_text(reserved),
        )
        for group, reserved in view.reserved_bytes(context)
    )
    console.print(table(title, columns, rows))
    for label, lines in (
        ("It will print", view.log_lines),
        ("Start it with", view.flags),
        ("Note", view.notes),
    ):
        for line in lines:
            console.print(f"{label}: {line}", highlight=False)
