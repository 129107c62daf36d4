"""What ranks keep adds up to the model, and matches published per-rank figures."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.formats import get_format
from kvhouse.spec import catalogue, load
from kvhouse.spec.layers import (
    ChunkedAttention,
    FullAttention,
    SlidingAttention,
    State,
    WithoutKV,
)
from kvhouse.spec.sharding import shard, stage_bounds, stage_sizes

BF16 = get_format("bf16")
NAMES = catalogue()
TOKENS = 4096


def kv(spec):
    return spec.kv_bytes(TOKENS, BF16, dtype="bfloat16")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_stages_add_up_to_the_model(name, pp):
    spec = load(name)
    stages = [shard(spec, pp=pp, stage=stage) for stage in range(pp)]
    assert tuple(layer for stage in stages for layer in stage.layers) == spec.layers
    assert sum(map(kv, stages)) == kv(spec)


@given(st.integers(1, 200), st.integers(1, 64))
def test_stages_are_contiguous_and_differ_by_one(layers, pp):
    assume(pp <= layers)
    sizes = stage_sizes(layers, pp)
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)
    ends = [stage_bounds(layers, pp, stage) for stage in range(pp)]
    assert [start for start, _ in ends] == [0, *[end for _, end in ends][:-1]]


# As the docstring of vLLM's get_pp_indices describes it: what is left over goes to all stages but
# the last, and to the middle ones alone where it suffices for no more.
@pytest.mark.parametrize(
    ("layers", "sizes"),
    [
        (5, (2, 2, 1)),
        (7, (2, 3, 2)),
        (61, (15, 15, 16, 15)),
        (62, (15, 16, 16, 15)),
        (63, (16, 16, 16, 15)),
        (126, (15, 16, 16, 16, 16, 16, 16, 15)),
    ],
)
def test_sizes_of_stages(layers, sizes):
    assert stage_sizes(layers, len(sizes)) == sizes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_hold_the_model_between_them(name, tp):
    spec = load(name)
    try:
        rank = shard(spec, tp=tp)
    except UnsupportedModel:
        parts = [part for layer in spec.layers for part in layer.parts]
        heads = [getattr(part, "query_heads", tp) for part in parts]
        heads += [max(tp, getattr(part, "kv_heads", tp)) for part in parts]
        assert any(count % tp for count in heads)
        return
    assert kv(rank) * tp >= kv(spec)
    parts = [part for layer in spec.layers for part in layer.parts]
    cut = all(type(part) in _CUT for part in parts)
    heads = [part.kv_heads for part in parts if isinstance(part, FullAttention)]
    if cut and min(heads, default=tp) >= tp:
        assert kv(rank) * tp == kv(spec)
    elif not any(type(part) in _CUT for part in parts):
        assert kv(rank) == kv(spec)


#: Kinds that ranks share out, where there are heads enough.
_CUT = (FullAttention, SlidingAttention, ChunkedAttention, State, WithoutKV)


@given(st.sampled_from(NAMES), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4))
def test_tensor_and_pipeline_parallelism_commute(name, tp, pp):
    spec = load(name)
    try:
        whole = shard(spec, tp=tp)
    except UnsupportedModel:
        return
    for stage in range(pp):
        both = shard(spec, tp=tp, pp=pp, stage=stage)
        assert both.layers == shard(whole, pp=pp, stage=stage).layers


def test_deepseek_r1_replicates_its_latent():
    spec = load("deepseek-r1")
    assert kv(shard(spec, tp=16)) == kv(spec)


@pytest.mark.parametrize(
    ("name", "tp", "bytes_per_token"),
    [
        # vLLM issue 6746, vLLM issue 13061's shape, and SGLang PR 29853's rule for tp > KV heads.
        ("llama-3.1-405b", 8, 64_512),
        ("llama-3-70b", 8, 80 * 128 * 4),
        ("llama-3-70b", 16, 80 * 128 * 4),
        ("qwen3-32b", 4, 64 * 2 * 128 * 4),
    ],
)
def test_bytes_of_a_rank(name, tp, bytes_per_token):
    rank = shard(load(name), tp=tp)
    assert rank.kv_bytes(1, BF16) == bytes_per_token


def test_states_of_a_rank():
    # noonghunna/club-3090 issue 232: a state page of 1,634,304 B with three speculative columns,
    # of which 3 * 5120 * 2 B are those columns.
    rank = shard(load("qwen3.5-27b"), tp=2)
    state = next(layer for layer in rank.layers if layer.state)
    assert state.state_bytes("bfloat16") == 1_634_304 - 3 * 5120 * 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (2, 1), (2, 3), (8, 4)])
def test_weights_are_shared_out(name, tp, pp):
    spec = load(name)
    try:
        ranks = [shard(spec, tp=tp, pp=pp, stage=stage) for stage in range(pp)]
    except UnsupportedModel:
        return
    if spec.parameters is None:
        assert {rank.parameters for rank in ranks} == {None}
        return
    assert {rank.weights_basis for rank in ranks} == {"estimated"}
    for whole, parts in (
        (spec.parameters, [rank.parameters for rank in ranks]),
        (spec.matmul_parameters, [rank.matmul_parameters for rank in ranks]),
        (spec.weight_bytes("bfloat16"), [rank.weight_bytes("bfloat16") for rank in ranks]),
        (spec.read_bytes(1).expected, [rank.read_bytes(1).expected for rank in ranks]),
    ):
        total = tp * sum(parts)
        assert whole <= total * (1 + 1e-6)
        assert total <= whole * (1 + 1e-4)


def test_prediction_layers_are_on_the_last_stage():
    spec = load("deepseek-v3")
    stages = [shard(spec, tp=8, pp=4, stage=stage) for stage in range(4)]
    assert [len(stage.mtp_layers) for stage in stages] == [0, 0, 0, len(spec.mtp_layers)]
    assert len(spec.mtp_layers) == 1


@pytest.mark.parametrize(
    ("name", "kwargs", "reason"),
    [
        ("llama-3-70b", {"tp": 3}, "64 query heads do not divide by 3 ranks"),
        ("phi-4", {"tp": 4}, "10 KV heads do not divide by 4 ranks"),
        ("qwen3.5-35b-a3b", {"tp": 32}, "a state of 16 heads or channels does not divide"),
        ("nemotron-3-nano-30b-a3b", {"tp": 16}, "8 state groups do not divide by 16 ranks"),
    ],
)
def test_refusals_name_what_does_not_divide(name, kwargs, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        shard(load(name), **kwargs)


@pytest.mark.parametrize(
    "kwargs", [{"tp": 0}, {"pp": 0}, {"pp": 81}, {"pp": 2, "stage": 2}, {"stage": -1}]
)
def test_impossible_ranks(kwargs):
    with pytest.raises(KvhouseError):
        shard(load("llama-3-70b"), **kwargs)
