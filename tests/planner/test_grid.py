"""The grid against the floors it stands for, asked one by one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse import spec
from kvhouse.core.policy import POLICIES, Placement
from kvhouse.costs import Roofline
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.planner import requests_that_fit
from kvhouse.planner.grid import grid
from kvhouse.spec.layers import ChunkedAttention, SlidingAttention, State
from kvhouse.spec.model import FullAttention, ModelSpec
from kvhouse.spec.tensors import Tensor

GIB = 2**30
MIXED = ModelSpec(
    "mixed",
    "M",
    (
        FullAttention(8, 2, 64, 64),
        SlidingAttention(8, 2, 64, 64, 100),
        ChunkedAttention(8, 8, 64, 64, 256),
        State((Tensor(5000, "float32"),)),
    ),
    512,
    1000,
    2**20,
    10**8,
    9 * 10**7,
    "float16",
)


@given(
    st.sampled_from([MIXED, spec.load("llama-3.1-8b")]),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=4),
    st.lists(st.integers(1, 10**5), min_size=1, max_size=4),
    st.sampled_from(POLICIES),
)
@settings(max_examples=60, deadline=None)
def test_every_point_is_the_floor_and_the_count_of_its_own(card, model, batches, lengths, policy):
    layout = KVLayout.of(model)
    found = grid(
        model, layout, card, batches, lengths, kv_memory=8 * GIB, max_length=10**5, policy=policy
    )  # fmt: skip
    roofline = Roofline(model, layout, card)
    placement = Placement(policy, layout, 10**5, 2048)
    for row, length in enumerate(lengths):
        size = layout.pool_in(8 * GIB, length, 2048)
        fitting = requests_that_fit(placement, size, length, 1)
        assert found.requests[row] == fitting
        for column, batch in enumerate(batches):
            cost = roofline.decode_floor(batch, length)
            assert found.step_bytes[row][column] == cost.bytes
            assert found.seconds[row][column] == cost.seconds
            assert found.tokens_per_second[row][column] == batch / cost.seconds
            assert found.compute_bound[row][column] == (cost.bound == "compute")
            assert found.fits[row][column] == (batch <= fitting)


def test_bytes_stay_exact_beyond_what_a_float_holds(card):
    model = spec.load("llama-2-70b-mha")
    layout = KVLayout.of(model, "fp32")
    batch = 10**9 + 7
    found = grid(model, layout, card, [batch], [4095], kv_memory=GIB, max_length=4096)
    written_and_read = 2 * 80 * 8192 * 4 * (4095 + 1)
    kv = found.step_bytes[0][0] - Roofline(model, layout, card).decode_floor(1, 1).weight_bytes
    assert kv == batch * written_and_read > 2**53


def test_a_device_without_flops_is_never_compute_bound(card):
    bare = replace(card, flops={})
    found = grid(MIXED, KVLayout.of(MIXED), bare, [1, 10**6], [1], kv_memory=GIB, max_length=9)
    assert found.compute_bound == ((False, False),)
    assert found.to_dict()["lengths"] == (1,)


@pytest.mark.parametrize(
    ("batches", "lengths", "reason"),
    [
        ([0], [1], "batch 0: a step has at least 1 request"),
        ([1], [0], "length 0: must lie between 1 and max_length 100"),
        ([1], [101], "length 101"),
        (range(1, 1002), range(1, 1001), "a grid of 1,001 batches and 1,000 lengths"),
    ],
)
def test_impossible_grids_are_named(card, batches, lengths, reason):
    with pytest.raises(KvhouseError, match=reason):
        grid(
            MIXED, KVLayout.of(MIXED), card, batches, lengths, kv_memory=GIB, max_length=100
        )  # fmt: skip
