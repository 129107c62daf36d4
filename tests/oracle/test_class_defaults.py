"""What an absent field means is what the config class of transformers puts in its place."""

import dataclasses
import json
from typing import Any

import pytest
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvhouse.spec.config import Config, architectures

KNOWN = {
    name: entry
    for name, entry in architectures().items()
    if name in CONFIG_MAPPING and "inside" not in entry and "like" not in entry
}


def plain(value: Any) -> Any:
    """A default as JSON would have it."""
    return None if value is dataclasses.MISSING else json.loads(json.dumps(value))


@pytest.mark.parametrize("model_type", KNOWN)
def test_defaults(model_type: str) -> None:
    entry, config_class = KNOWN[model_type], CONFIG_MAPPING[model_type]
    theirs = {field.name: plain(field.default) for field in dataclasses.fields(config_class)}
    for standard, value in entry.get("defaults", {}).items():
        assert theirs[entry.get("names", {}).get(standard, [standard])[0]] == value, standard
    if "num_key_value_heads" not in entry.get("defaults", {}):
        assert "num_key_value_heads" not in theirs or "refused" in entry


#: Decoders inside larger models, which go by another type's rules but have defaults of their own.
PARTS = {
    "qwen2_5_omni_text": "Qwen2_5OmniTextConfig",
    "qwen2_5_vl_text": "Qwen2_5_VLTextConfig",
    "qwen2_vl_text": "Qwen2VLTextConfig",
    "qwen3_omni_moe_text": "Qwen3OmniMoeTextConfig",
    "qwen3_vl_moe_text": "Qwen3VLMoeTextConfig",
    "qwen3_vl_text": "Qwen3VLTextConfig",
    "step3p5": "Step3p7TextConfig",
}


@pytest.mark.parametrize("model_type", PARTS)
def test_defaults_of_parts(model_type: str) -> None:
    ours = Config({}, "here", model_type)
    config_class = getattr(transformers, PARTS[model_type])
    theirs = {field.name: plain(field.default) for field in dataclasses.fields(config_class)}
    names = {"num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"}
    names |= {"max_position_embeddings", "sliding_window", "max_window_layers"}
    for name in names & theirs.keys():
        assert ours.optional_integer(name, 2**40) == theirs[name], name


@pytest.mark.parametrize("model_type", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
def test_class_names(model_type: str) -> None:
    wanted = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    assert architectures()[model_type]["class"] == wanted
