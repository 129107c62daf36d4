"""What a config means, checked against the models that transformers builds from it."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kvhouse.layout import KVLayout
from kvhouse.spec import ModelSpec, catalogue
from kvhouse.spec.families import FAMILIES
from kvhouse.spec.hf_config import read_config
from kvhouse.spec.resolve import load, read_catalogue

Tiny = Callable[..., dict[str, object]]
torch.set_num_threads(2)


def build(config: dict[str, object], device: str) -> PreTrainedModel:
    rest = {key: value for key, value in config.items() if key != "model_type"}
    built = AutoConfig.for_model(str(config["model_type"]), **rest)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(built)
    return model


def assert_same_weights(spec: ModelSpec, model: PreTrainedModel) -> None:
    # parameters() yields a tied matrix once; modules() yields each product that is computed.
    assert spec.parameters == sum(weight.numel() for weight in model.parameters())
    products = [m for m in model.modules() if isinstance(m, torch.nn.Linear | Conv1D)]
    assert spec.matmul_parameters == sum(m.weight.numel() for m in products)
    assert spec.architecture == type(model).__name__
    assert len(spec.layers) == model.config.num_hidden_layers
    assert spec.max_length == model.config.max_position_embeddings


def cached_bytes(model: PreTrainedModel, tokens: int) -> int:
    """Bytes of all keys and values in transformers' own cache after ``tokens`` tokens."""
    with torch.no_grad():
        output = model(torch.arange(tokens)[None] + 2, use_cache=True)
    cache = next(output[key] for key in ("cache", "past_key_values") if key in output)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


DENSE = [name for name in catalogue() if read_catalogue()[name]["config"]["model_type"] in FAMILIES]


@pytest.mark.parametrize("name", DENSE)
def test_catalogue_has_the_weights_of_the_full_size_model(name: str) -> None:
    config = {**read_catalogue()[name]["config"]}
    config.pop("quantization_config", None)
    model = build(config, "meta")
    spec = load(name)
    assert_same_weights(spec, model)
    assert spec.dtype == str(model.config.dtype or torch.float32).removeprefix("torch.")


CASES = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": ...}),
    ("llama", {"num_key_value_heads": None}),
    ("llama", {"num_key_value_heads": 1}),
    ("llama", {"head_dim": 14}),
    ("llama", {"attention_bias": True}),
    ("llama", {"mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"dtype": "bfloat16"}),
    ("mistral", {"head_dim": 6}),
    ("mistral", {"num_key_value_heads": 6}),
    ("mistral", {"sliding_window": 65}),
    # Left out, the family's window of 4096 tokens is in force, but longer than the context.
    ("mistral", {"sliding_window": ...}),
    ("qwen2", {}),
    ("qwen2", {"head_dim": 12, "tie_word_embeddings": True}),
    ("qwen2", {"num_key_value_heads": None}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 3}),
    ("qwen2", {"layer_types": ["full_attention"] * 3}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True, "num_key_value_heads": 1}),
    ("phi3", {}),
    ("phi3", {"num_key_value_heads": ..., "tie_word_embeddings": True}),
    ("phi3", {"head_dim": 8}),
    ("phi", {}),
    ("phi", {"num_key_value_heads": ..., "qk_layernorm": True}),
    ("phi", {"tie_word_embeddings": True}),
    ("gpt2", {}),
    ("gpt2", {"n_inner": 31, "tie_word_embeddings": False}),
    ("gpt2", {"n_inner": None, "n_ctx": 64, "dtype": "float16"}),
    ("gpt2", {"n_embd": ..., "hidden_size": 24, "n_layer": ..., "num_hidden_layers": 2}),
    ("gpt2", {"head_dim": 99, "num_key_value_heads": 1}),
    ("opt", {}),
    ("opt", {"word_embed_proj_dim": 10}),
    ("opt", {"word_embed_proj_dim": 10, "tie_word_embeddings": False, "enable_bias": False}),
    ("opt", {"do_layer_norm_before": False}),
    ("opt", {"_remove_final_layer_norm": True}),
    ("opt", {"layer_norm_elementwise_affine": False}),
]


@pytest.mark.parametrize(("model_type", "changes"), CASES)
def test_kv_bytes_are_those_of_transformers_own_cache(
    model_type: str, changes: dict[str, object], tiny: Tiny
) -> None:
    config = tiny(model_type, **changes)
    spec = read_config(config, "m", "test")
    dtype = getattr(torch, spec.dtype)
    model = build(config, "cpu").to(dtype)
    assert_same_weights(spec, model)
    assert spec.weight_bytes() == sum(weight.nbytes for weight in model.parameters())
    short = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[spec.dtype]
    assert KVLayout.of(spec, short).bytes_per_token * 7 == cached_bytes(model, 7)


COUNTS = st.integers(1, 4)
# Rotary positions need pairs of elements.
EVEN = st.integers(1, 20).map(lambda half: 2 * half)
FLAGS = st.booleans()
OPTIONAL: dict[str, dict[str, st.SearchStrategy[object]]] = {
    "llama": {"head_dim": EVEN, "attention_bias": FLAGS, "mlp_bias": FLAGS},
    "mistral": {"head_dim": EVEN},
    "qwen2": {"head_dim": EVEN, "use_sliding_window": st.just(False)},
    "qwen3": {"attention_bias": FLAGS, "head_dim": EVEN},
    "phi3": {"head_dim": EVEN},
    "phi": {"qk_layernorm": FLAGS},
    "gpt2": {"n_inner": COUNTS},
    "opt": {
        "word_embed_proj_dim": st.integers(1, 40),
        "enable_bias": FLAGS,
        "do_layer_norm_before": FLAGS,
        "_remove_final_layer_norm": FLAGS,
        "layer_norm_elementwise_affine": FLAGS,
    },
}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), model_type=st.sampled_from(sorted(OPTIONAL)))
def test_weights_of_any_small_config(data: st.DataObject, model_type: str, tiny: Tiny) -> None:
    kv_heads, groups, per_head = data.draw(st.tuples(COUNTS, COUNTS, st.sampled_from([4, 8])))
    heads = kv_heads * groups
    hidden = heads * per_head
    changes: dict[str, object] = {
        "tie_word_embeddings": data.draw(FLAGS),
        "vocab_size": data.draw(st.integers(3, 50)),
    }
    if model_type == "gpt2":
        changes |= {"n_embd": hidden, "n_head": heads, "n_layer": data.draw(COUNTS)}
    else:
        changes |= {"hidden_size": hidden, "num_attention_heads": heads}
        changes |= {"num_hidden_layers": data.draw(COUNTS)}
        if model_type != "opt":
            changes |= {"num_key_value_heads": kv_heads}
    for field, values in OPTIONAL[model_type].items():
        if data.draw(FLAGS):
            changes[field] = data.draw(values)
    config = tiny(model_type, **changes, pad_token_id=0)
    assert_same_weights(read_config(config, "m", "test"), build(config, "meta"))
