"""Old and new names of one and the same fact, and the places where larger models keep it."""

from typing import Any

import pytest

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.formats import get_format
from kvhouse.spec.hf_config import read_config

Config = dict[str, Any]

BASE: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "intermediate_size": 32,
}
#: 3 layers of 2 heads of 16, keys and values, 2 bytes an element.
TOKEN = 3 * 2 * 16 * 2 * 2


def token_bytes(config: Config) -> int:
    spec = read_config(config, "m", "here")
    return spec.kv_bytes(1, get_format("bf16")) - spec.state_bytes()


# The same model, 3 layers of 8 heads of 8 (MHA) or of 1 (MQA), under each family's own names.
MHA, MQA = 3 * 8 * 8 * 2 * 2, 3 * 8 * 2 * 2
NAMES: list[tuple[str, Config, int]] = [
    ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 512}, MHA),
    ("gpt2", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}, MHA),
    ("gptj", {"n_embd": 64, "n_layer": 3, "n_head": 8}, MHA),
    ("codegen", {"n_embd": 64, "n_layer": 3, "n_head": 8}, MHA),
    ("bloom", {"n_embed": 64, "n_layer": 3, "n_head": 8}, MHA),
    ("bloom", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}, MHA),
    ("mpt", {"d_model": 64, "n_layers": 3, "n_heads": 8}, MHA),
    ("gpt_neo", {"hidden_size": 64, "num_layers": 3, "num_heads": 8}, MHA),
    ("xglm", {"d_model": 64, "num_layers": 3, "attention_heads": 8}, MHA),
    ("gpt_bigcode", {"n_embd": 64, "n_layer": 3, "n_head": 8}, MQA),
    ("gpt_bigcode", {"n_embd": 64, "n_layer": 3, "n_head": 8, "multi_query": True}, MQA),
    ("gpt_bigcode", {"n_embd": 64, "n_layer": 3, "n_head": 8, "multi_query": False}, MHA),
    ("falcon", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}, MQA),
    (
        "falcon",
        {**BASE, "num_key_value_heads": 2, "head_dim": ..., "multi_query": False},
        MHA,  # the class knows no num_key_value_heads
    ),
    (
        "falcon",
        {**BASE, "head_dim": ..., "new_decoder_architecture": True, "num_kv_heads": 4},
        MHA // 2,
    ),
    (
        "dbrx",
        {"d_model": 64, "n_layers": 3, "n_heads": 8, "attn_config": {"kv_n_heads": 2}},
        MHA // 4,
    ),
    ("jetmoe", {**BASE, "head_dim": ..., "kv_channels": 16, "num_experts_per_tok": 2}, TOKEN),
    ("exaone", {**BASE, "num_hidden_layers": ..., "num_layers": 3, "head_dim": ...}, MHA // 4),
    ("step3p5", {**BASE, "num_key_value_heads": ..., "num_attention_groups": 2}, TOKEN),
]


@pytest.mark.parametrize(("model_type", "config", "expected"), NAMES)
def test_names_of_families(model_type: str, config: Config, expected: int) -> None:
    sizes = {"vocab_size": 100, "max_position_embeddings": 512, "torch_dtype": "bfloat16"}
    whole = {"model_type": model_type, **sizes, **config}
    if "n_positions" in whole:
        del whole["max_position_embeddings"]
    assert token_bytes({k: v for k, v in whole.items() if v is not ...}) == expected


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen3", "gemma", "olmo2", "phi3"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"torch_dtype": "bfloat16"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "torch_dtype": "bfloat16"},
        {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ],
)
def test_names_that_changed(model_type: str, more: Config) -> None:
    config = {"model_type": model_type, "sliding_window": None, **BASE, **more}
    spec = read_config(config, "m", "here")
    assert token_bytes(config) == TOKEN
    assert spec.dtype == ("bfloat16" if "dtype" in str(more) else "float32")
    assert spec.max_length == 512


LLAMA = {"model_type": "llama", **BASE}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "some_vl", "text_config": LLAMA},
        {"model_type": "internvl_chat", "llm_config": LLAMA},
        {"model_type": "deepseek_vl_v2", "language_config": LLAMA},
        {"model_type": "some_omni", "thinker_config": {"text_config": LLAMA}},
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {"text_config": {**BASE, "model_type": "qwen2_5_omni_text"}},
        },
        {
            "model_type": "qwen3_omni_moe",
            "thinker_config": {"text_config": {**BASE, "model_type": "qwen3_omni_moe_text"}},
        },
        {"model_type": "qwen2_5_vl", **BASE, "vision_config": {"hidden_size": 7}},
        {"model_type": "qwen2_vl", "text_config": {**BASE, "model_type": "qwen2_vl_text"}},
    ],
)
def test_places_in_larger_models(config: Config) -> None:
    spec = read_config({**config, "torch_dtype": "bfloat16"}, "m", "here")
    assert token_bytes(config) == TOKEN
    assert spec.dtype == "bfloat16"
    assert spec.parameters is None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "some_vl"}, "model type 'some_vl' is not supported"),
        ({"model_type": "some_vl", "text_config": {**BASE}}, "'some_vl' is not supported"),
        ({"model_type": "some_vl", "llm_config": {"model_type": "some_vl"}}, "'some_vl' is not"),
        ({"model_type": "some_vl", "text_config": 7}, "field 'text_config' is 7, not an object"),
        (
            {"model_type": "some_omni", "thinker_config": [1]},
            r"field 'thinker_config.text_config' is \[1\], not an object",
        ),
        (
            {"model_type": "some_vl", "text_config": {"model_type": "gemma3", "text_config": {}}},
            "model type 'gemma3' is not supported",
        ),
    ],
)
def test_places_that_hold_no_decoder(config: Config, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        read_config(config, "m", "here")


def test_the_publishers_and_the_saved_names_of_mimo_v2_agree() -> None:
    own = {
        "model_type": "mimo_v2_flash",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "v_head_dim": 16,
    }
    published = {
        **own,
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "sliding_window_size": 8,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 24,
        "swa_v_head_dim": 16,
    }
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    saved = {**own, "layer_types": kinds, "sliding_window": 9}
    first, second = (read_config(config, "m", "here") for config in (published, saved))
    assert first.layers == second.layers
    wider = read_config({**published, "swa_num_key_value_heads": 8}, "m", "here")
    bf16 = get_format("bf16")
    assert wider.kv_bytes(1, bf16) - first.kv_bytes(1, bf16) == 2 * 4 * (24 + 16) * 2
    for pattern in ([0, 1], [0, 1, 2, 0]):
        with pytest.raises(SpecError, match=r"'hybrid_layer_pattern' is .*not 0 or 1 for each"):
            read_config({**published, "hybrid_layer_pattern": pattern}, "m", "here")


def test_prediction_layers_in_the_list_of_step_are_no_layers_of_the_decoder() -> None:
    full, slides = "full_attention", "sliding_attention"
    config = {
        "model_type": "step3p7",
        **BASE,
        "sliding_window": 8,
        "num_nextn_predict_layers": 2,
        "layer_types": [full, slides, slides, full, full],
        "dtype": "bfloat16",
        "attention_other_setting": {"num_attention_heads": 12, "num_attention_groups": 4},
    }
    spec = read_config(config, "m", "here")
    per_head = 16 * 2 * 2
    assert spec.kv_bytes(20, get_format("bf16")) == (20 * 2 + 2 * 8 * 4) * per_head
    assert [layer.attention_flops(1) for layer in spec.layers] == [64 * 8, 64 * 12, 64 * 12]
    with pytest.raises(SpecError, match="names 5 layers, but there are 3"):
        read_config({**config, "num_nextn_predict_layers": 1}, "m", "here")
    with pytest.raises(UnsupportedModel, match="layer type 'magic' is not supported"):
        read_config({**config, "layer_types": [full, full, "magic"]}, "m", "here")


@pytest.mark.parametrize(
    ("stated", "width"), [(None, 4), ("auto", 4), ("float32", 4), ("bfloat16", 2), ("float16", 2)]
)
@pytest.mark.parametrize("name", ["mamba_ssm_cache_dtype", "mamba_ssm_dtype"])
def test_the_dtype_of_a_state_is_the_publishers(name: str, stated: str | None, width: int) -> None:
    sizes = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2}
    pattern = {"hybrid_override_pattern": "M*", "conv_kernel": 4}
    config = {"model_type": "nemotron_h", **BASE, **sizes, **pattern, "dtype": "bfloat16"}
    state = 8 * 16 * 32 * width + (8 * 16 + 2 * 2 * 32) * 3 * 2
    assert read_config({**config, name: stated}, "m", "here").state_bytes() == state
    with pytest.raises(SpecError, match=f"field '{name}' is 'int8', not one of float32"):
        read_config({**config, name: "int8"}, "m", "here")


@pytest.mark.parametrize(
    ("model_type", "fields", "problem"),
    [
        ("bamba", {"attn_layer_indices": [0, 3]}, "'attn_layer_indices' names layer 3, but there"),
        ("lfm2", {"full_attn_idxs": [9]}, "names layer 9, but there are 3, counted from 0"),
        (
            "kimi_linear",
            {"linear_attn_config": {"full_attn_layers": [0]}},
            "names layer 0, but there are 3, counted from 1",
        ),
        ("mllama_text_model", {"cross_attention_layers": [3]}, "names layer 3, but there are 3"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "full or shared for each of 3 layers"),
        ("glm_moe_dsa", {"indexer_types": ["full", "none", "full"]}, "full or shared for each"),
        ("glm_moe_dsa", {"index_topk_pattern": "FS"}, "full or shared for each of 3 layers"),
        ("hy_v4", {"indexer_types": ["shared"] * 2}, "full or shared for each of 3 layers"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "names 2 layers, but there are 3"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 4}, "names 4 layers, but there are 3"),
        ("deepseek_v4", {"compress_ratios": [0, 4]}, "not 0, 4 or 128 for each layer"),
    ],
)
def test_lists_that_do_not_fit_the_layers(model_type: str, fields: Config, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        read_config({"model_type": model_type, **BASE, **fields}, "m", "here")


def test_the_ways_to_say_which_indexers_are_shared_agree() -> None:
    base = {"model_type": "glm_moe_dsa", **BASE, "num_hidden_layers": 6}
    ways: list[Config] = [
        {"indexer_types": ["full", "full", "shared", "shared", "full", "shared"]},
        {"index_topk_pattern": "FFSSFS"},
        {"index_topk_pattern": ["full", "full", "shared", "shared", "full", "shared"]},
        {"index_topk_freq": 3, "index_skip_topk_offset": 2},
    ]
    specs = [read_config({**base, **way}, "m", "here") for way in ways]
    assert [len(layer.parts) for layer in specs[0].layers] == [2, 2, 1, 1, 2, 1]
    assert all(spec.layers == specs[0].layers for spec in specs)
