"""The search for assumptions: what it is given wrong, and the order of what it found."""

import pytest

from kvhouse.errors import KvhouseError
from kvhouse.planner.assumptions import assumptions
from kvhouse.planner.case import Case
from kvhouse.spec import load

SEVEN_B = load("llama-2-7b")


@pytest.fixture
def case(card):
    return Case(SEVEN_B, card, 500, 200, 4096)


def test_what_holds_comes_first_and_then_the_nearest(case):
    # By hand: 9,715,992,166 bytes hold 1,158 blocks of 8 MiB: 4 reservations, 34 of 500 tokens.
    found = assumptions(
        case, 4, 34, weight_dtypes=["float16"], kv_formats=["int8", "fp16"], utilizations=[0.9]
    )
    assert [(one.kv_format, one.contiguous, one.holds) for one in found.tried] == [
        ("fp16", 4, True),
        ("int8", 8, False),
    ]
    assert found.holding == found.tried[:1]
    # 34 requests of 33 blocks are more than the 1,101 blocks that may be taken.
    assert found.nearest.longest_mean == 32 * 16
    assert found.to_dict()["tried"][1]["speedup"] is None


@pytest.mark.parametrize(
    ("counts", "options", "reason"),
    [
        ((0, 3), {}, "a claim of 0 -> 3 requests"),
        ((1, 3), {"kv_formats": []}, "no assumptions to try"),
        ((1, 3), {"weight_dtypes": ["int3"]}, "unknown weight dtype"),
        ((1, 3), {"utilizations": [2.0]}, "utilization 2.0"),
    ],
)
def test_impossible_searches_are_named(case, counts, options, reason):
    with pytest.raises(KvhouseError, match=reason):
        assumptions(case, *counts, **options)
