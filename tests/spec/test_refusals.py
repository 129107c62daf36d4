"""Models that would be counted wrongly are refused, by name and with the reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvhouse.errors import UnsupportedModel
from kvhouse.spec import load

Tiny = Callable[..., dict[str, object]]
Write = Callable[[object], Path]

SLIDING = ["full_attention", "sliding_attention", "full_attention"]
CASES: list[tuple[str, dict[str, object], str]] = [
    ("llama", {"model_type": "mixtral"}, "model type 'mixtral'"),
    ("llama", {"model_type": "gemma3", "text_config": {}}, "model type 'gemma3'"),
    ("llama", {"model_type": "qwen3_moe"}, "gpt2, llama, mistral, opt, phi, phi3, qwen2, qwen3"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "SequenceClassification"),
    ("gpt2", {"architectures": ["LlamaForCausalLM"]}, "it is GPT2LMHeadModel"),
    ("mistral", {"sliding_window": 64}, "only the last 64 tokens"),
    ("mistral", {"sliding_window": 4, "layer_types": ["full_attention"] * 3}, "last 4 tokens"),
    (
        "mistral",
        {"sliding_window": ..., "max_position_embeddings": 4096},
        r"'sliding_window' \(left out.*4096",
    ),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}, "last 9"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}, "last 9"),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 9}, "last 9"),
    (
        "qwen3",
        {"use_sliding_window": True, "max_position_embeddings": 10000},
        r"left out.*last 4096",
    ),
    ("qwen2", {"layer_types": SLIDING}, "layer type 'sliding_attention'"),
    ("qwen3", {"layer_types": ["linear_attention"] * 3}, "layer type 'linear_attention'"),
    ("llama", {"layer_types": SLIDING}, "layer type 'sliding_attention'"),
    ("phi3", {"sliding_window": 33}, "only the last 33 tokens"),
    ("llama", {"sliding_window": 33}, "only the last 33 tokens"),
    ("llama", {"attention_chunk_size": 16}, "attention_chunk_size.*chunk"),
    ("llama", {"kv_lora_rank": 512}, "kv_lora_rank.*MLA"),
    ("llama", {"num_local_experts": 8}, "num_local_experts.*experts"),
    ("llama", {"text_config": {"hidden_size": 8}}, "text_config.*config of its own"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config.*quantised"),
    ("llama", {"num_nextn_predict_layers": 1}, "multi-token-prediction"),
    ("llama", {"per_layer_config": {"0": {}}}, "layers differ"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention.*cross-attention"),
    ("gpt2", {"is_encoder_decoder": True}, "is_encoder_decoder.*encoder"),
]


@pytest.mark.parametrize(("model_type", "changes", "reason"), CASES)
def test_refused(
    model_type: str, changes: dict[str, object], reason: str, tiny: Tiny, write: Write
) -> None:
    path = write(tiny(model_type, **changes))
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        {"text_config": None, "quantization_config": None, "num_experts": 0},
        {"is_encoder_decoder": False, "add_cross_attention": False, "kv_sharing_modes": []},
        {"layer_types": ["full_attention", "attention", "full_attention"], "architectures": []},
    ],
)
def test_fields_that_say_no_are_no_reason(
    changes: dict[str, object], tiny: Tiny, write: Write
) -> None:
    assert len(load(write(tiny("llama", **changes))).layers) == 3


def test_quantisation_stated_beside_the_config(tiny: Tiny, write: Write) -> None:
    path = write(tiny("llama"))
    path.with_name("hf_quant_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match=r"hf_quant_config\.json: its weights are quantised"):
        load(path.parent)
