"""A chatbot watched under two policies, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from kvhouse.replayer.results import ReplayResult
from kvhouse.units import seconds_text
from kvhouse.views.tables import side_by_side, table


@dataclass(frozen=True, slots=True)
class Watched:
    """What a policy did in the time that it was watched.

    Attributes:
        result: Its figures; those of requests are of the few that had ended by then.
        tokens: Tokens that were generated, for requests under way as well.
        tokens_per_second: The same by the time watched.
        step_seconds: Mean time of a step.
        rows: Mean number of requests in a step.
        calm_first_token_seconds: Median time to first token of one question at a time.
    """

    result: ReplayResult
    tokens: int
    tokens_per_second: float
    step_seconds: float
    rows: float
    calm_first_token_seconds: float


_FIGURES: tuple[tuple[str, Callable[[Watched], float], Callable[[float], str]], ...] = (
    ("at once, peak", lambda w: w.result.running.peak, lambda value: f"{value:,.0f}"),
    ("at once, mean", lambda w: w.result.running.mean, lambda value: f"{value:,.1f}"),
    ("waiting, mean", lambda w: w.result.waiting.mean, lambda value: f"{value:,.1f}"),
    ("tokens generated", lambda w: w.tokens, lambda value: f"{value:,.0f}"),
    ("tokens/s", lambda w: w.tokens_per_second, lambda value: f"{value:,.1f}"),
    ("a step, mean", lambda w: w.step_seconds, seconds_text),
    ("requests in a step, mean", lambda w: w.rows, lambda value: f"{value:,.1f}"),
    ("pool used by tokens", lambda w: w.result.ledger.mean_share["used"], "{:.1%}".format),
    ("pool held and empty", lambda w: _held(w), "{:.1%}".format),
    ("first token, no queue, p50", lambda w: w.calm_first_token_seconds, seconds_text),
)


def _held(watched: Watched) -> float:
    share = watched.result.ledger.mean_share
    return share["reserved"] + share["internal"]


def show_chatbot(console: Console, title: str, old: Watched, new: Watched) -> None:
    """Print both and their ratios, and what holds the gain in tokens/s below that in requests."""
    rows = [side_by_side(name, get(old), get(new), text) for name, get, text in _FIGURES]
    heads = ("", old.result.pool.policy, new.result.pool.policy, "ratio")
    console.print(table(title, heads, rows))
    more, slower = new.rows / old.rows, new.step_seconds / old.step_seconds
    console.print(
        f"What caps it: a step serves {more:.1f} times the requests and takes {slower:.1f} times "
        "as long. It reads the weights once for all of them, but computes every token and reads "
        "every request's keys and values, and this processor is soon busy with that."
    )
