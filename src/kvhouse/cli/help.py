"""How help is laid out."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

#: Columns that a command's help takes at most.
MOST_WIDTH = 100


class Commands(TyperGroup):
    """A group whose commands explain themselves in two columns.

    typer's own page has a column for each of a name, its opposite and its values; the longest of
    each leave 19 of 80 columns for what an option does.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - whatever typer gives
        super().__init__(*args, **settings)
        for command in self.commands.values():
            if isinstance(command, TyperCommand):
                command.rich_markup_mode = None
