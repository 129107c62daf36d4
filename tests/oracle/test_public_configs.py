"""Published configs, made narrow, against the cache that transformers fills for them.

What is kept does not depend on the width of the stream, the experts or the vocabulary: these are
made small; windows are made short, and queries and states get fewer heads. Layers, their pattern,
KV heads, head dimensions, latents and indexers are the published ones.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvhouse.formats import get_format
from kvhouse.planner.engines.transformers import held_bytes
from kvhouse.spec import Layer
from kvhouse.spec.hf_config import read_config

pytestmark = pytest.mark.filterwarnings("ignore")

Config = dict[str, Any]
DATA = Path(__file__).parents[1] / "spec" / "data" / "public_configs.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]

#: Sizes that decide nothing of what is kept, and those that are slow to run: windows and the heads
#: of states.
NARROW = {
    **dict.fromkeys(["hidden_size", "vocab_size", "vocab_size_per_layer_input"], 64),
    **dict.fromkeys(["intermediate_size", "dense_intermediate_size", "share_expert_dim"], 16),
    **dict.fromkeys(
        ["moe_intermediate_size", "shared_intermediate_size", "intermediate_size_mlp"], 16
    ),
    **dict.fromkeys(["moe_shared_expert_intermediate_size", "moe_latent_size"], 16),
    **dict.fromkeys(["shared_expert_intermediate_size", "q_lora_rank", "o_lora_rank"], 16),
    **dict.fromkeys(["n_routed_experts", "num_experts", "num_local_experts"], 8),
    **dict.fromkeys(["num_experts_per_tok", "num_experts_per_token", "top_k_experts"], 2),
    **dict.fromkeys(["mamba_num_heads", "linear_num_value_heads"], 16),
    **dict.fromkeys(["n_group", "topk_group", "num_expert_group", "o_groups"], 1),
    "sliding_window": 8,
    "sliding_window_size": 8,
    "attention_chunk_size": 8,
    "pad_token_id": 0,
}
#: Under other names in the classes of transformers.
OWN_TYPES = {
    "deepseek_ref": "deepseek_v4",
    "kimi_k2": "deepseek_v3",
    "mimo": "qwen2",
    "minimax_m3": "minimax_m3_vl_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
}
#: Decoders that are no causal LM of their own: how the names of their classes begin.
PARTS = {
    "qwen3_vl_text": "Qwen3VLText",
    "qwen3_vl_moe_text": "Qwen3VLMoeText",
    "step3p7": "Step3p7Text",
}
#: No class of transformers can run them.
NO_CLASS = {"nemotron-nas"}


def text_part(config: Config) -> Config:
    part = {"model_type": config["model_type"], **(config.get("text_config") or config)}
    for name in ("quantization_config", "vision_config", "audio_config", "architectures"):
        part.pop(name, None)
    return part


def narrow(config: Config) -> Config:
    """The decoder's config with the same layers and heads, in a stream 64 wide."""
    part = text_part(config)
    if "head_dim" not in part and "kv_lora_rank" not in part:
        part["head_dim"] = part["hidden_size"] // part["num_attention_heads"]
    small = {name: NARROW.get(name, value) for name, value in part.items()}
    for name, value in part.items():  # null and 0 say that there is no such thing
        small[name] = value if value in (None, 0) else small[name]
    # Latents serve any number of query heads, and a KV head any number of its own.
    if "kv_lora_rank" in part:
        small["num_key_value_heads"] = small["num_attention_heads"] = 2
    elif part.get("num_key_value_heads"):
        small["num_attention_heads"] = 2 * part["num_key_value_heads"]
    if small["model_type"] == "kimi_linear":
        small["linear_attn_config"] = {**part["linear_attn_config"], "num_heads": 2}
    heads = small["num_attention_heads"]
    small["hidden_size"] = 64 if 64 % heads == 0 else heads
    return {**small, "hidden_act": "silu", "pad_token_id": 0, "max_position_embeddings": 4096}


def groups() -> dict[str, Config]:
    """One narrow config for each set of layers, by the name of the first model that has them."""
    found: dict[tuple[str, tuple[Layer, ...]], tuple[str, Config]] = {}
    for row in ROWS:
        small = narrow(row["config"])
        if small["model_type"] not in NO_CLASS:
            kind = small["model_type"]
            key = OWN_TYPES.get(kind, kind), read_config(small, "m", "here").layers
            found.setdefault(key, (row["name"], small))
    return dict(found.values())


GROUPS = groups()


@pytest.mark.parametrize("name", GROUPS)
def test_cache_bytes(name: str, own_model: Callable[..., Any], oracle: Callable[..., int]) -> None:
    spec, theirs = read_config(GROUPS[name], "m", "here"), copy.deepcopy(GROUPS[name])
    kind = theirs.pop("model_type")
    if kind in PARTS:
        config = getattr(transformers, PARTS[kind] + "Config")(**theirs)
        model = getattr(transformers, PARTS[kind] + "Model")(config).to(torch.bfloat16).eval()
    else:
        model = own_model(OWN_TYPES.get(kind, kind), theirs, "bfloat16")[1]
    forgets = any(part.kept_tokens(99) < 99 for layer in spec.layers for part in layer.parts)
    # Beyond the windows, and beyond a first entry made of 128 tokens.
    longer = (140,) if "compress_ratios" in GROUPS[name] else (21,) if forgets else ()
    for tokens in (7, *longer):
        assert held_bytes(spec, tokens, get_format("bf16"), "bfloat16") == oracle(model, tokens)
