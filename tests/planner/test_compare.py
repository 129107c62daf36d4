"""A comparison against plans made one by one, and what its impossible rows say."""

from dataclasses import replace

import pytest

from kvhouse.errors import KvhouseError
from kvhouse.planner import plan
from kvhouse.planner.compare import compare
from kvhouse.spec import load

MODELS = ("llama-2-7b", "llama-2-13b", "llama-3.1-8b")
FORMATS = ("fp16", "int8")


def test_rows_are_the_plans_in_order(card):
    small = replace(card, name="small", memory_bytes=16 * 2**30)
    found = compare(MODELS, (card, small), FORMATS, context=1000)
    combinations = [(m, d, f) for m in MODELS for d in (card, small) for f in FORMATS]
    assert len(found.rows) == len(combinations)
    for row, (model, device, kv_format) in zip(found.rows, combinations, strict=True):
        result = plan(model, device, kv_format=kv_format, context=1000)
        assert (row.model, row.device, row.kv_format) == (model, device.name, kv_format)
        assert row.weight_bytes == result.budget.weights
        assert row.bytes_per_token == result.bytes_per_token
        assert row.request_bytes == result.numbers.logical
        assert row.requests == {fit.policy: fit.requests for fit in result.fits}
        assert row.error == ""
        if result.budget.kv:
            assert row.tokens_per_second == result.speeds[-1].tokens_per_second
        else:
            assert (row.tokens_per_second, row.requests["paged"]) == (0.0, 0)


def test_weights_without_room_are_a_row_with_zeros(card):
    row = compare(["llama-2-13b"], [card]).rows[0]
    assert (row.error, row.kv_budget_bytes, row.tokens_per_second) == ("", 0, 0.0)


def test_what_is_impossible_is_a_row_that_says_why(card):
    found = compare(["llama-2-7b", "no-such", load("llama-3.1-8b")], [card, "h9000"], context=8000)
    errors = [row.error for row in found.rows]
    assert errors[0] == "context 8000: must lie between 1 and max_length 4096"
    assert all("unknown device" in error for error in (errors[1], errors[5]))
    assert errors[2].startswith("no model")
    assert found.rows[2].weight_bytes is None
    assert errors[4] == ""
    assert found.context == 8000
    assert found.to_dict()["rows"][4]["model"] == "llama-3.1-8b"


def test_a_format_that_is_none_is_a_row_too(card):
    row = compare(["llama-2-7b"], [card], ["int3"]).rows[0]
    assert "unknown KV format 'int3'" in row.error


@pytest.mark.parametrize("models", [(), ("llama-2-7b",) * 10_001])
def test_nothing_and_too_much_are_refused(card, models):
    with pytest.raises(KvhouseError, match="combinations: give 1 to 10,000"):
        compare(models, [card])
