"""The recorded accuracy of KV formats: within what is promised, and quoted by the remedies."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from kvhouse.planner.remedies.prices import accuracy_of

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
    assert change("int4", rotated=True) < change("int4") / 2
    assert RECORDED["tokens"] > 5000


@pytest.mark.parametrize(("name", "share"), [("int8", "-0.01%"), ("fp8", "+0.35%")])
def test_remedies_quote_it(name, share):
    assert f"on smollm2 kvhouse quality measured a perplexity {share}" in accuracy_of(name)
    assert "on smollm2, rotated, kvhouse quality measured" in accuracy_of("int4")
