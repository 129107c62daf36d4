"""The list of demos, and the last tables of the paging one: predicted beside measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.replayer.logged import LoggedDrive
from kvhouse.replayer.results import ReplayResult
from kvhouse.units import bytes_text, seconds_text
from kvhouse.views.replay import LEDGER_NAMES
from kvhouse.views.tables import side_by_side, table


@dataclass(frozen=True, slots=True)
class Agreement:
    """One policy's drives, in which nothing but the times may differ.

    Attributes:
        policy: The placement policy.
        planned: Requests at once by the plan, if each had the mean length.
        replayed: The replay.
        ran: The run.
    """

    policy: str
    planned: int
    replayed: LoggedDrive
    ran: LoggedDrive


def show_demos(console: Console, demos: Sequence[Mapping[str, str]]) -> None:
    """Print each demo's name and what it shows."""
    width = max(len(demo["name"]) for demo in demos)
    for demo in demos:
        name = Text(demo["name"].ljust(width), "bold")
        console.print(Text.assemble(name, "  ", demo["shows"]), soft_wrap=True)
    console.print("\nStart one with `kvhouse demo NAME`; docs/chapter.md walks through them.")


def show_agreement(console: Console, agreements: Sequence[Agreement]) -> None:
    """Print what replay predicted beside what the run did."""
    heads = [f"{a.policy} {way}" for a in agreements for way in ("replay", "run")]
    drives = [drive for a in agreements for drive in (a.replayed, a.ran)]
    rows = [
        ["at once", *(f"{drive.result.running.peak:,}" for drive in drives)],
        ["steps", *(f"{drive.result.steps:,}" for drive in drives)],
        ["pool bytes", *(f"{drive.pool_bytes:,}" for drive in drives)],
        ["plan log", *(drive.plan_log[:12] for drive in drives)],
    ]
    console.print(table("Predicted and measured", ["", *heads], rows))
    for a in agreements:
        console.print(f"The plan: {a.planned:,} at once, {a.policy}, if each had the mean length.")
    console.print("The plan log is every step's rows and block tables, as a SHA-256.\n")


def show_gain(console: Console, before: ReplayResult, after: ReplayResult) -> None:
    """Print what the second result gained over the first, and where the bytes went."""
    rows = [side_by_side(name, get(before), get(after), text) for name, get, text in _FIGURES]
    heads = ("", before.pool.policy, after.pool.policy, "ratio")
    console.print(table("What paging bought, same pool, same backlog (measured)", heads, rows))
    ledger = [
        [
            LEDGER_NAMES[name],
            f"{before.ledger.mean_share[name]:.1%}",
            f"{after.ledger.mean_share[name]:.1%}",
        ]
        for name in LEDGER_CLASSES
    ]
    title = f"Where the {bytes_text(before.pool.bytes)} were, mean over the run"
    console.print(table(title, heads[:3], ledger))


def _first_token(result: ReplayResult) -> float:
    return result.first_token_seconds.mean if result.first_token_seconds else 0.0


_FIGURES: tuple[tuple[str, Callable[[ReplayResult], float], Callable[[float], str]], ...] = (
    ("requests at once, peak", lambda r: r.running.peak, lambda value: f"{value:,.0f}"),
    ("requests at once, mean", lambda r: r.running.mean, lambda value: f"{value:,.1f}"),
    ("output tokens/s", lambda r: r.output_tokens_per_second, lambda value: f"{value:,.1f}"),
    ("time to first token, mean", _first_token, seconds_text),
    ("time for all", lambda r: r.makespan_seconds, seconds_text),
)
