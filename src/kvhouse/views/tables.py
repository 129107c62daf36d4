"""The one look of kvhouse's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column names things and whose others hold figures.

    A figure that is wider than its column is folded: cut short it would be another figure.
    """
    grid = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, column in enumerate(columns):
        grid.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid
