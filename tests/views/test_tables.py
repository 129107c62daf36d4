"""Tables: text stands as it is, and no terminal obeys it."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from kvhouse.views.tables import table


def test_brackets_are_no_styles_and_control_characters_are_shown():
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    cells = ["[a/b].csv", "[/] \x1b]0;t\x07"]
    console.print(table("[b]1[link=x]\x1b[2J\r\u202e", ["[red]", "two\nlines"], [cells]))
    text = console.file.getvalue()
    for shown in (
        "[b]1[link=x]\\x1b[2J\\r\\u202e",
        "[red]",
        "two",
        cells[0],
        "[/] \\x1b]0;t\\x07",
    ):
        assert shown in text
    assert text.replace("\n", "").isprintable()
