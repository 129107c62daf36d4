"""The one look of kvhouse's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rich import box
from rich.table import Table


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 0
) -> Table:
    """A table whose first column names things and whose others hold figures.

    The first ``names`` columns hold names that a reader types again, so they are never broken. A
    figure that is wider than its column is folded: cut short it would be another figure.
    """
    grid = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, column in enumerate(columns):
        side: Literal["left", "right"] = "left" if index < max(1, names) else "right"
        grid.add_column(column, justify=side, overflow="fold", no_wrap=index < names)
    for row in rows:
        grid.add_row(*row)
    return grid
