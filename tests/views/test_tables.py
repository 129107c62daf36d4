"""Tables: text stands as it is, and no terminal obeys it."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from kvhouse import devices, spec
from kvhouse.core.policy import POLICIES
from kvhouse.engine.quality import Quality, QualityReport, Variant
from kvhouse.replayer import Setup, Tiering, read_trace
from kvhouse.replayer.compare import compare, variants
from kvhouse.views.quality import show_quality
from kvhouse.views.replay import show_results
from kvhouse.views.tables import table
from kvhouse.views.tiers import show_tiers


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


def printed(show, what, width=80):
    console = Console(file=StringIO(), width=width, color_system=None)
    show(console, what)
    return console.file.getvalue()


def test_tiers_of_large_pools_fit_a_screen_with_bytes_above_blocks():
    trace = read_trace("azure-conv-2023", limit=12, max_length=4096)
    setup = Setup(
        trace, spec.load("llama-2-7b"), devices.get("a100-80g"), kv_blocks=300, max_length=4096,
        tiering=Tiering(2**40, 20e9, write="through"),
    )  # fmt: skip
    result = setup.drive()
    (tier,) = result.tiers.traffic
    assert tier.stored.blocks > 0
    lines = printed(show_tiers, [result]).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(" host"))
    assert "1 TiB" in lines[first]
    blocks = lines[first + 1].split()
    assert blocks[:2] == ["(131,072)", f"({tier.stored.blocks:,})"]


def test_the_heads_of_a_quality_table_are_not_broken():
    rows = [
        Quality(Variant(name, rotated), "numba", size, 39.1825, -0.00055, 0.00064, 0.0033, 0.9838)
        for name, rotated, size in (("fp32", False, 1_146_080), ("int8", True, 1_111_880))
    ]
    text = printed(show_quality, QualityReport("smollm2", "news", 5610, 256, tuple(rows)))
    heads = text.splitlines()[2:4]
    assert heads[0].split() == ["bytes/", "KL", "KL", "same"]
    assert heads[1].split() == [
        "KV",
        "format",
        "token",
        "perplexity",
        "change",
        "mean",
        "p99",
        "top",
        "1",
    ]


@pytest.mark.parametrize("width", [80, 140])
def test_four_policies_stand_side_by_side_without_a_broken_name(width):
    trace = read_trace("azure-conv-2023", limit=20, max_length=4096)
    setup = Setup(trace, spec.load("llama-2-7b"), devices.get("a100-80g"), kv_blocks=2048)
    results = compare(variants(setup, POLICIES))
    lines = printed(lambda console, what: show_results(console, "title", what), results, width)
    rows = lines.splitlines()
    assert max(map(len, rows)) <= width
    for name in ("requests finished", "per output token, mean", "internal fragmentation"):
        assert any(row.startswith(f" {name} ") for row in rows)
    whole = sum("16 GiB in 2,048 blocks" in row for row in rows)
    apart = [row.split() for row in rows if row.startswith((" pool  ", " pool, blocks"))]
    if width == 80:
        assert whole == 0
        assert apart == [["pool", *["16", "GiB"] * 4], ["pool,", "blocks", *["2,048"] * 4]]
    else:
        assert whole == 1
