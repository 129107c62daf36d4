"""Published configs, made narrow, against the cache that transformers fills for them.

What is kept does not depend on the width of the stream, the experts or the vocabulary: these are
made small, and windows short. Layers, their pattern, heads and head dimensions are the published
ones.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from kvhouse.formats import get_format
from kvhouse.planner.engines.transformers import held_bytes
from kvhouse.spec.hf_config import read_config

pytestmark = pytest.mark.filterwarnings("ignore")

Config = dict[str, Any]
DATA = Path(__file__).parents[1] / "spec" / "data" / "public_configs.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]

#: Sizes that decide nothing of what is kept, where a config has them.
NARROW = {
    **dict.fromkeys(["hidden_size", "vocab_size", "vocab_size_per_layer_input"], 64),
    **dict.fromkeys(["intermediate_size", "dense_intermediate_size", "share_expert_dim"], 16),
    **dict.fromkeys(["moe_intermediate_size", "shared_intermediate_size", "intermediate_size_mlp"], 16),
    **dict.fromkeys(["moe_shared_expert_intermediate_size", "moe_latent_size"], 16),
    **dict.fromkeys(["shared_expert_intermediate_size", "q_lora_rank", "o_lora_rank"], 16),
    **dict.fromkeys(["n_routed_experts", "num_experts", "num_local_experts"], 8),
    **dict.fromkeys(["num_experts_per_tok", "num_experts_per_token", "top_k_experts"], 2),
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
#: No class of transformers can run them.
NO_CLASS = {"nemotron-nas"}
#: Tokens on both sides of the windows.
LENGTHS = (7, 21)


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
    return {**small, "pad_token_id": 0, "max_position_embeddings": 4096}


GROUPS: dict[str, tuple[str, Config]] = {}
for row in ROWS:
    if text_part(row["config"])["model_type"] not in NO_CLASS:
        small = narrow(row["config"])
        key = json.dumps({**small, "max_position_embeddings": 0, "dtype": 0}, sort_keys=True)
        GROUPS.setdefault(key, (row["name"], small))


@pytest.mark.parametrize(("name", "config"), GROUPS.values(), ids=[n for n, _ in GROUPS.values()])
def test_cache_bytes(name: str, config: Config, own_model: Callable[..., Any], oracle: Any) -> None:
    spec = read_config(config, "m", "here")
    theirs = copy.deepcopy(config)
    kind = theirs.pop("model_type")
    model = own_model(OWN_TYPES.get(kind, kind), theirs, "bfloat16")[1]
    for tokens in LENGTHS:
        assert held_bytes(spec, tokens, get_format("bf16"), "bfloat16") == oracle(model, tokens)
