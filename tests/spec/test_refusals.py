"""Models that would be counted wrongly are refused, by name and with the reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvhouse.errors import UnsupportedModel
from kvhouse.planner import plan
from kvhouse.spec import FullAttention, load

Tiny = Callable[..., dict[str, object]]
Write = Callable[[object], Path]

CASES: list[tuple[str, dict[str, object], str]] = [
    ("llama", {"model_type": "lama"}, "model type 'lama' is not supported: nothing is known"),
    ("llama", {"model_type": "x" * 500}, "model type 'xxx"),
    ("llama", {"model_type": "blt"}, "'blt' is not supported: .*beside patches"),
    ("llama", {"model_type": "gemma4_assistant"}, "a drafter, which reads the KV of the model"),
    ("llama", {"model_type": "bert"}, "an encoder, which keeps no KV"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "SequenceClassification"),
    ("llama", {"model_type": "olmo", "architectures": ["OlmoForTokens"]}, "it is OlmoForCausalLM"),
    ("gpt2", {"architectures": ["LlamaForCausalLM"]}, "it is GPT2LMHeadModel"),
    ("qwen3", {"layer_types": ["linear_attention"] * 3}, "'qwen3' has no linear or recurrent"),
    ("llama", {"layer_types": ["full_attention", "magic", "mlp"]}, "layer type 'magic' is not"),
    ("llama", {"attention_chunk_size": 16}, "attention_chunk_size.*chunk"),
    ("llama", {"kv_lora_rank": 512}, "kv_lora_rank.*MLA"),
    ("llama", {"num_kv_shared_layers": 1}, "num_kv_shared_layers.*does not have"),
    ("llama", {"kv_sharing_modes": ["reuse"]}, "kv_sharing_modes.*another layer's KV"),
    ("llama", {"text_config": {"hidden_size": 8}}, "text_config.*config of its own"),
    ("llama", {"per_layer_config": {"0": {}}}, "layers that differ"),
    ("llama", {"block_configs": [{}]}, "layers differ"),
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


UNCOUNTED: list[tuple[str, dict[str, object], str]] = [
    ("llama", {"num_local_experts": 8}, "experts.*num_local_experts"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantised.*quantization_config"),
    ("llama", {"num_nextn_predict_layers": 1}, "predict several tokens"),
    ("gpt2", {"add_cross_attention": True}, "cross attention.*add_cross_attention"),
    ("llama", {"model_type": "olmo"}, "model type 'olmo' are not counted"),
    ("qwen2", {"model_type": "mimo"}, "model type 'mimo' are not counted"),
]


@pytest.mark.parametrize(("model_type", "changes", "reason"), UNCOUNTED)
def test_weights_that_are_not_counted_are_never_guessed(
    model_type: str, changes: dict[str, object], reason: str, tiny: Tiny, write: Write
) -> None:
    path = write(tiny(model_type, **changes))
    spec = load(path)
    assert spec.parameters is spec.matmul_parameters is None
    asks = [spec.weight_bytes, spec.counted]
    if all(type(layer) is FullAttention for layer in spec.layers):
        asks.append(lambda: plan(path, "a100-80g"))
    for ask in asks:
        with pytest.raises(UnsupportedModel, match=reason) as caught:
            ask()
        assert str(path) in str(caught.value)


def test_quantisation_stated_beside_the_config(tiny: Tiny, write: Write) -> None:
    path = write(tiny("llama"))
    path.with_name("hf_quant_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match=r"weights are quantised, as hf_quant_config\.json"):
        load(path.parent).weight_bytes()
