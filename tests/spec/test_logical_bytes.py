"""Logical bytes of published models, by numbers that were worked out by hand, and their laws."""

import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.formats import FORMATS, get_format
from kvhouse.spec import catalogue, load
from kvhouse.spec.hf_config import read_config

BF16 = get_format("bf16")

# KV at 4,096 tokens and state, both in bytes, batch 1, in bfloat16. The sums, by layer:
VALUES = {
    # 32, 40 and 80 layers of 2 * heads * 128 elements.
    "llama-2-7b": (2_147_483_648, 0),
    "llama-2-13b": (3_355_443_200, 0),
    "llama-3-70b": (1_342_177_280, 0),
    # 61 latents of 512 + 64 elements; the layer that predicts a second token is not counted.
    "deepseek-v3": (287_834_112, 0),
    # 52 layers with a window of 1,024 tokens to 10 without, 16 heads of 128.
    "gemma-3-27b": (771_751_936, 0),
    # 18 layers with a window of 128 tokens to 18 without, 8 heads of 64.
    "gpt-oss-120b": (155_713_536, 0),
    # 12 layers of 2 heads of 256; 36 states of 32 * 128 * 128 float32 and 8,192 channels * 3.
    "qwen3-next-80b-a3b": (100_663_296, 77_266_944),
    # 16 layers of 4 heads of 256; 48 states of 48 * 128 * 128 float32 and 10,240 channels * 3.
    "qwen3.5-27b": (268_435_456, 153_944_064),
    # Chunks of 8,192 tokens cut nothing off yet: 48 layers of 8 heads of 128.
    "llama-4-scout": (805_306_368, 0),
}


@pytest.mark.parametrize("name", VALUES)
def test_published_models(name: str) -> None:
    kv, state = VALUES[name]
    spec = load(name)
    assert spec.state_bytes(dtype="bfloat16") == state
    assert spec.kv_bytes(4096, BF16, dtype="bfloat16") == kv + state


def test_gemma_3_27b_as_published_states_no_pattern() -> None:
    spec = load("gemma-3-27b")
    # 128k tokens: 10 full layers and 52 windows, 16 KV heads of 128.
    per_token = 2 * 16 * 128 * 2
    assert spec.kv_bytes(131_072, BF16) == per_token * (10 * 131_072 + 52 * 1024)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("name", catalogue())
@settings(max_examples=20, deadline=None)
@given(tokens=st.integers(0, 300_000), more=st.integers(1, 5000))
def test_bytes_never_fall_with_the_length(
    name: str, kv_format: str, tokens: int, more: int
) -> None:
    spec, fmt = SPECS[name], get_format(kv_format)
    shorter, longer = spec.kv_bytes(tokens, fmt), spec.kv_bytes(tokens + more, fmt)
    assert spec.state_bytes() == spec.kv_bytes(0, fmt) <= shorter <= longer
    assert spec.kv_bytes(tokens, BF16) <= spec.kv_bytes(tokens, get_format("fp32"))


SPECS = {name: load(name) for name in catalogue()}


@pytest.mark.parametrize("language", ["", ".zh-CN"])
def test_the_page_on_models_gives_what_it_says(language: str) -> None:
    page = Path(__file__).parents[2] / "docs" / f"models{language}.md"
    failures, tried = doctest.testfile(str(page), module_relative=False)
    assert (failures, tried) == (0, 5)


def test_another_input_is_kept_once() -> None:
    config = {
        "model_type": "mllama",
        "text_config": {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "cross_attention_layers": [1],
        },
    }
    spec = read_config(config, "m", "here")
    per_token = 2 * 2 * 16 * 2  # two vectors of two heads of 16 elements of two bytes
    assert spec.kv_bytes(10, BF16) == 2 * 10 * per_token
    assert spec.kv_bytes(10, BF16, encoder_tokens=7) == (2 * 10 + 7) * per_token
    assert spec.kv_bytes(20, BF16, encoder_tokens=7) == (2 * 20 + 7) * per_token


def test_any_model_without_heavy_imports(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 2})
    )
    code = (
        "import sys; from kvhouse.spec import load\n"
        f"assert load({str(tmp_path)!r}).state_bytes() == 2 * 16 * (3 + 16) * 4\n"
        "assert not {'torch', 'transformers', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
