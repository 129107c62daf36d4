"""The recorded accuracy of KV formats: within what is promised, and quoted by the remedies."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from kvhouse.planner.remedies.prices import (
    ACCURACY_OF_WEIGHTS,
    LATENT_INT4,
    UNCHANGED,
    accuracy_of,
    standing,
)

RECORDED = json.loads((files("kvhouse") / "data" / "quality" / "smollm2.json").read_text())


def change(kv_format: str, *, rotated: bool = False) -> float:
    (found,) = (
        each
        for each in RECORDED["results"]
        if each["variant"] == {"kv_format": kv_format, "rotated": rotated}
    )
    return float(found["perplexity_change"])


def test_the_formats_stand_in_the_order_of_their_bits():
    assert abs(change("int8")) < 0.001
    assert abs(change("int8")) < change("fp8") < change("int4", rotated=True)
    assert change("int4", rotated=True) < min(0.03, change("int4") / 2)
    assert RECORDED["tokens"] > 5000


@pytest.mark.parametrize(("name", "share"), [("int8", "-0.03%"), ("fp8", "+0.44%")])
def test_remedies_quote_it(name, share):
    assert f"on smollm2 kvhouse quality measured a perplexity {share}" in accuracy_of(name)
    assert "on smollm2, rotated, kvhouse quality measured" in accuracy_of("int4")


def test_a_word_says_what_is_known_of_each_accuracy():
    """The verdict of ``kvhouse remedies`` ranks by it, and the table of a plan shows it."""
    words = {name: standing(accuracy_of(name)) for name in ("int8", "fp8", "int4")}
    assert words == {"int8": "known", "fp8": "unknown", "int4": "loses"}
    assert standing(UNCHANGED) == "unchanged"
    assert standing(LATENT_INT4) == standing(ACCURACY_OF_WEIGHTS) == "unknown"


@pytest.mark.parametrize("document", ["engine.md", "engine.zh-CN.md"])
def test_the_documents_show_it(document):
    text = (Path(__file__).parents[2] / "docs" / document).read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:fp|bf|int)\d+(?:, rotated)?) \| (.*) \|$", text, re.MULTILINE)
    assert rows == [
        (
            each["variant"]["kv_format"] + ", rotated" * each["variant"]["rotated"],
            f"{each['bytes_per_token']:,} | {each['perplexity_change']:+.2%} | "
            f"{each['kl_mean']:.2g} | {each['kl_p99']:.2g} | {each['top1_agreement']:.1%}",
        )
        for each in RECORDED["results"]
    ]
    assert f"{RECORDED['tokens']:,}" in text
