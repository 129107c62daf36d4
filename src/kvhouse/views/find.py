"""What a search over replays found, and how."""

from __future__ import annotations

from rich.console import Console

from kvhouse.replayer.find import Found, Goal
from kvhouse.units import bytes_text, seconds_text
from kvhouse.views.replay import show_results
from kvhouse.views.tables import table


def show_found(console: Console, title: str, found: Found) -> None:
    """Print the answer, the replays that led to it, and the figures of the best."""
    rows = [
        [
            _value(found, probe.value),
            "yes" if probe.holds else "no",
            "-" if probe.share is None else f"{probe.share:.2%}",
            f"{probe.rejections:,}",
            f"{probe.preemptions:,}",
        ]
        for probe in found.probes
    ]
    heads = [found.unit, "holds", "meet the SLO", "rejected", "preemptions"]
    console.print(table(f"{found.find}: {title}", heads, rows))
    console.print(_answer(found), style="bold")
    if found.requests_per_second is not None:
        console.print("A longer trace gives queues more time to grow, and may sustain less.")
    if found.partial:
        console.print("The search was ended early: there may be a better one.", style="yellow")
    elif not found.bounded:
        console.print("It held at every setting that is tried at all.", style="yellow")
    show_results(console, f"At {_value(found, found.value)} ({found.unit})", [found.result])


def _answer(found: Found) -> str:
    goal = _goal(found.goal)
    if found.requests_per_second is not None:
        return (
            f"Largest rate found at which {goal}: {found.requests_per_second:,.4g} requests/s, "
            f"{found.value:,.4g} times the trace's."
        )
    return (
        f"Smallest pool found with which {goal}: {found.value:,.0f} blocks, "
        f"{bytes_text(found.pool_bytes)}."
    )


def _goal(goal: Goal) -> str:
    if goal.slo is None:
        return "no request is rejected or preempted"
    spans = (
        ("to the first token", goal.slo.first_token),
        ("per token after it", goal.slo.per_token),
        ("in all", goal.slo.latency),
    )
    limits = ", ".join(
        f"{seconds_text(limit)} {name}" for name, limit in spans if limit is not None
    )
    return f"{100 * goal.share:.4g} % of the requests meet {limits}"


def _value(found: Found, value: float) -> str:
    return f"{value:,.4g}" if found.unit == "factor" else f"{value:,.0f}"
