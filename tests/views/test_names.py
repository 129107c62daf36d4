"""Names in lines beside tables: they stand as they are, and no terminal obeys them."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from kvhouse import devices, spec
from kvhouse.planner import plan
from kvhouse.planner.compare import Comparison, ComparisonRow
from kvhouse.replayer.sweep import Row, SweepResult
from kvhouse.views.compare import show_comparison
from kvhouse.views.devices import show_device
from kvhouse.views.plan import show_plan
from kvhouse.views.sweep import show_sweep

#: What a style's end and an escape sequence look like in a name.
HOSTILE = "m[/] \x1b]0;t\x07"
SHOWN = "m[/] \\x1b]0;t\\x07"


def shown_by(show, *arguments):
    console = Console(file=StringIO(), width=200, force_terminal=True, color_system=None)
    show(console, *arguments)
    text = console.file.getvalue()
    assert text.replace("\n", "").isprintable()
    return " ".join(text.split())


def test_names_in_lines_beside_tables_stand_as_they_are():
    model, device = spec.load("gpt2"), devices.get("l4")
    model = replace(model, name=HOSTILE, architecture=HOSTILE)
    device = replace(device, name=HOSTILE, title=HOSTILE, vendor=HOSTILE, memory_bytes=2**26)
    assert shown_by(show_plan, plan(model, device)).count(SHOWN) >= 3
    assert shown_by(show_device, device).count(SHOWN) >= 3
    row = ComparisonRow(HOSTILE, HOSTILE, "bf16", error=HOSTILE)
    assert shown_by(show_comparison, Comparison(None, (row,))).count(SHOWN) == 3
    for status, count in (("done", 4), ("impossible", 2)):
        row = Row("", HOSTILE, HOSTILE, HOSTILE, "bf16", 16, None, status, HOSTILE)
        result = SweepResult(HOSTILE, 1, (row,), 1, 0)
        assert shown_by(show_sweep, result, "tokens", 3).count(SHOWN) == count
