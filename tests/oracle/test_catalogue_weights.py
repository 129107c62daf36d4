"""The catalogue's weights against transformers' models of full size, on the meta device."""

import re
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from kvhouse.spec import load
from kvhouse.spec.resolve import read_catalogue

pytestmark = pytest.mark.filterwarnings("ignore")

#: One of each kind; what transformers takes the decoder's config as, where not as the file's own.
MODELS = {
    "deepseek-v3": "deepseek_v3",
    "deepseek-v3.2": "deepseek_v32",
    "deepseek-v4-flash": "deepseek_v4",
    "gemma-3-27b": "gemma3_text",
    "gemma-4-26b-a4b": "gemma4_text",
    "glm-5.2": "glm_moe_dsa",
    "gpt-oss-120b": "gpt_oss",
    "kimi-k2": "deepseek_v3",
    "llama-4-maverick": "llama4_text",
    "mimo-v2-flash": "mimo_v2_flash",
    "minimax-m2.5": "minimax_m2",
    "minimax-m3-nvfp4": "minimax_m3_vl_text",
    "mixtral-8x7b": "mixtral",
    "nemotron-3-super-120b-a12b-fp8": "nemotron_h",
    "nemotron-h-56b": "nemotron_h",
    "qwen3-30b-a3b": "qwen3_moe",
    "qwen3-next-80b-a3b": "qwen3_next",
    "qwen3.5-27b": "qwen3_5_text",
    "qwen3.5-35b-a3b": "qwen3_5_moe_text",
}
_MARKS = ("quantization_config", "vision_config", "architectures", "model_type", "dtype")


def decoder(name: str) -> dict[str, Any]:
    """The decoder's part of a config, with the whole model's word on tied embeddings."""
    config = read_catalogue()[name]["config"]
    inner = {**config, **config.get("text_config", {})}
    inner.pop("text_config", None)
    return {key: value for key, value in inner.items() if key not in _MARKS}


@pytest.mark.parametrize("name", MODELS)
def test_weights_of_the_full_size_model(name: str) -> None:
    config = CONFIG_MAPPING[MODELS[name]](**decoder(name))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    theirs = sum(weight.numel() for weight in model.parameters())
    theirs += sum(b.numel() for n, b in model.named_buffers() if n.endswith("correction_bias"))
    spec = load(name)
    beside = re.search(r"estimated at ([\d,]+) weights", spec.weights_note)
    assert spec.parameters is not None
    assert spec.parameters - (int(beside[1].replace(",", "")) if beside else 0) == theirs
