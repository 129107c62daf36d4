"""What a step reads of the weights, their formats, and the layers that predict further tokens."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.formats import get_format
from kvhouse.spec import FullAttention, ModelSpec, load
from kvhouse.spec.experts import Experts
from kvhouse.spec.hf_config import read_config
from kvhouse.spec.layers import Indexer, LatentAttention, SlidingAttention
from kvhouse.spec.resolve import read_catalogue
from kvhouse.spec.weight_formats import WEIGHT_FORMATS, Storage, weight_format


@pytest.mark.parametrize(
    ("experts", "active", "tokens"), [(4, 2, 1), (4, 2, 3), (5, 1, 4), (3, 3, 2), (4, 3, 3)]
)
def test_expected_experts_are_the_mean_over_all_choices(
    experts: int, active: int, tokens: int
) -> None:
    choices = list(itertools.combinations(range(experts), active))
    used = [
        len(set(itertools.chain(*picked))) for picked in itertools.product(choices, repeat=tokens)
    ]
    group = Experts(1, experts, active, 10)
    assert group.expected(tokens) == pytest.approx(float(Fraction(sum(used), len(used))))
    assert group.most(tokens) == max(used)
    assert min(used) == active


@given(st.integers(1, 64), st.data(), st.integers(1, 200))
def test_bounds_of_experts(experts: int, data: st.DataObject, tokens: int) -> None:
    active = data.draw(st.integers(1, experts))
    group = Experts(3, experts, active, 7)
    assert active <= group.expected(tokens) + 1e-9
    assert group.expected(tokens) <= group.most(tokens) + 1e-9 <= experts + 1e-9
    assert group.expected(tokens + 1) >= group.expected(tokens) - 1e-9


def test_one_token_reads_what_it_is_multiplied_with() -> None:
    for name in ("mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "llama-3-8b", "jamba-v0.1"):
        spec = load(name)
        read = spec.read_parameters(1)
        assert (read.floor, read.most) == (spec.matmul_parameters, spec.matmul_parameters)
        assert read.expected == pytest.approx(read.floor, abs=1)


def test_many_tokens_read_every_expert_of_mixtral() -> None:
    spec = load("mixtral-8x7b")
    # 32 layers of 8 experts of three 4096 by 14336 matrices, as the paper has them (2401.04088).
    assert [(e.layers, e.experts, e.active) for e in spec.experts] == [(32, 8, 2)]
    assert spec.experts[0].parameters_each == 3 * 4096 * 14336
    read = spec.read_parameters(512)
    everything = spec.parameters - 32000 * 4096 - 65 * 4096  # without the table and the norms
    assert read.most == everything
    assert read.floor < read.expected <= everything
    two = spec.read_parameters(2)
    # Of 8 experts, two tokens use 8 * (1 - 0.75 ** 2) = 3.5 a layer.
    assert two.expected - two.floor == 32 * 3 * 4096 * 14336 * 3 // 2
    assert two.most - two.floor == 32 * 3 * 4096 * 14336 * 2


def test_a_step_without_samples_leaves_the_head_alone_and_one_without_tokens_all() -> None:
    spec = load("llama-3-8b")
    assert spec.read_parameters(0) == spec.read_bytes(0)
    assert spec.read_parameters(0).most == 0
    head = 128256 * 4096
    assert spec.read_parameters(5).floor - spec.read_parameters(5, sampled=False).floor == head
    assert spec.read_bytes(5).floor - spec.read_bytes(5, sampled=False).floor == 2 * head


@pytest.mark.parametrize("name", ["mixtral-8x7b", "llama-3-8b", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("dtype", [None, "float32", "fp8", "int4", "nvfp4"])
def test_bytes_read_never_exceed_the_bytes_there_are(name: str, dtype: str | None) -> None:
    spec = load(name)
    reads = [spec.read_bytes(tokens, dtype) for tokens in (1, 7, 100_000)]
    for read in reads:
        assert 0 < read.floor <= read.expected <= read.most <= spec.weight_bytes(dtype)
    assert reads[0].floor == reads[2].floor
    assert reads[0].most <= reads[1].most <= reads[2].most


def test_gpt_oss_is_as_large_as_its_files() -> None:
    # total_size in the index of the published safetensors files.
    assert load("gpt-oss-20b").weight_bytes() == 13_761_264_768
    assert load("gpt-oss-120b").weight_bytes() == 65_248_815_744


# Bits per weight with all scales, from the formats' own specifications.
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("float32", 32),
        ("bfloat16", 16),
        ("fp8", 8),
        ("int8", 8),
        ("fp8-block", 8 + 32 / 16384),
        ("int4", 4 + 20 / 128),
        ("mxfp4", 4.25),
        ("mxfp8", 8.25),
        ("nvfp4", 4.5),
        ("nf4", 4.5),
    ],
)
def test_bits_per_weight(name: str, bits: float) -> None:
    assert weight_format(name).bytes(2**20) == 2**20 * bits / 8


def test_every_format_has_its_bits_tested() -> None:
    assert set(WEIGHT_FORMATS) - {"float16"} == {
        *("float32", "bfloat16", "fp8", "int8", "fp8-block"),
        *("int4", "mxfp4", "mxfp8", "nvfp4", "nf4"),
    }


@given(st.sampled_from(sorted(WEIGHT_FORMATS)), st.integers(0, 10**9), st.integers(0, 10**6))
def test_more_weights_take_more_bytes(name: str, weights: int, more: int) -> None:
    chosen = weight_format(name)
    assert chosen.bytes(weights) <= chosen.bytes(weights + more)
    assert chosen.bytes(weights) >= weights * chosen.bits / 8


def test_a_quantised_dtype_leaves_tables_and_norms_alone() -> None:
    spec = load("llama-3-8b")
    table = 128256 * 4096
    norms = 65 * 4096
    layers = spec.parameters - 2 * table - norms
    assert spec.weight_bytes("fp8") == layers + 2 * (2 * table + norms)
    assert spec.weight_bytes("int4") == layers * (4 + 20 / 128) / 8 + 2 * (2 * table + norms)
    assert spec.weight_bytes_basis("fp8") == "estimated"
    assert spec.weight_bytes_basis("float32") == spec.weight_bytes_basis() == "exact"


def test_an_unknown_weight_dtype_names_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"unknown weight dtype 'int3'.*nvfp4"):
        load("llama-3-8b").weight_bytes("int3")


def test_a_storage_is_named_by_its_formats() -> None:
    assert Storage.of("fp8", "bfloat16").name == "fp8, bfloat16"
    assert Storage.of("float32", "bfloat16").name == "float32"


def test_deepseek_keeps_its_prediction_layer_apart() -> None:
    spec, bf16 = load("deepseek-v3"), get_format("bf16")
    assert spec.mtp_layers == (LatentAttention(128, 512, 64),)
    # 61 layers of (512 + 64) bfloat16 elements for each of 4,096 tokens; with it, 62.
    assert spec.kv_bytes(4096, bf16) == 287_834_112 == 61 * 576 * 2 * 4096
    assert spec.with_mtp().kv_bytes(4096, bf16) == 62 * 576 * 2 * 4096
    assert spec.with_mtp().mtp_layers == ()
    assert "not counted" in spec.weights_note


@pytest.mark.parametrize(
    ("name", "count", "kind"),
    [
        ("deepseek-v3.2", 1, Indexer),
        ("glm-5", 1, Indexer),
        ("glm-4.5-air", 1, FullAttention),
        ("minimax-m2.5", 3, FullAttention),
        ("mimo-7b", 1, FullAttention),
        ("nemotron-3-super-120b-a12b-fp8", 1, FullAttention),
        ("qwen3.5-27b", 1, FullAttention),
    ],
)
def test_prediction_layers(name: str, count: int, kind: type) -> None:
    spec = load(name)
    assert len(spec.mtp_layers) == count
    assert all(kind in {type(part) for part in layer.parts} for layer in spec.mtp_layers)


@pytest.mark.parametrize("name", ["llama-3-8b", "kimi-k2", "gpt-oss-20b", "jamba-v0.1"])
def test_models_without_prediction_layers(name: str) -> None:
    assert load(name).mtp_layers == ()
    assert load(name).with_mtp() == load(name)


def test_weights_that_are_not_known_are_named_wherever_they_are_asked_for() -> None:
    spec = ModelSpec("m", "A", (FullAttention(1, 1, 1, 1),), 1, 1, 1, None, None, "bfloat16")
    for ask in (lambda: spec.read_parameters(1), lambda: spec.read_bytes(1), spec.weight_bytes):
        with pytest.raises(UnsupportedModel, match="its weights are not known"):
            ask()


def test_prediction_layers_of_mimo_slide_as_its_others_do() -> None:
    config = {**read_catalogue()["mimo-v2-flash"]["config"], "num_nextn_predict_layers": 3}
    spec = read_config(config, "m", "here")
    sliding = {layer for layer in spec.layers if type(layer) is SlidingAttention}
    assert len(spec.mtp_layers) == 3
    assert set(spec.mtp_layers) == sliding
