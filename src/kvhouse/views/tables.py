"""The one look of kvhouse's tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    names: int = 0,
    prose: Collection[int] | None = None,
) -> Table:
    """A table whose first column names things and whose others hold figures.

    The first ``names`` columns hold names that a reader types again, so they are never broken. A
    figure that is wider than its column is folded: cut short it would be another figure. Where
    ``prose`` names columns of words, these alone give way to a narrow screen. All text stands as
    it is: brackets in a name are no style, and control characters are shown.
    """
    grid = Table(
        title=_plain(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, column in enumerate(columns):
        words = prose is not None and index in prose
        side: Literal["left", "right"] = "left" if words or index < max(1, names) else "right"
        whole = index < names if prose is None else not words
        grid.add_column(_plain(column), justify=side, overflow="fold", no_wrap=whole)
    for row in rows:
        grid.add_row(*map(_plain, row))
    return grid


def _plain(text: str, style: str = "") -> Text:
    return Text(visible(text, but="\n"), style)


def side_by_side(
    name: str, old: float, new: float, text: Callable[[float], str]
) -> tuple[str, str, str, str]:
    """A row with a figure of two drives and their ratio, which nothing has of 0."""
    return name, text(old), text(new), f"{new / old:.2f}x" if old else "-"


def say_whole(console: Console, text: str = "", style: str = "") -> None:
    """Print a text as it stands, as ``table`` does; only the terminal breaks its lines."""
    console.print(_plain(text, style), soft_wrap=True)


def say_wrapped(console: Console, text: str, style: str | None = None) -> None:
    """The same, broken between words to the console's width, with its figures set off."""
    console.print(visible(text, but="\n"), style=style, markup=False)


def visible(text: str, *, but: str = "") -> str:
    """A text with an escape in place of each control character that is not in ``but``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in but else repr(one)[1:-1] for one in text)
