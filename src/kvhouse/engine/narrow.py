"""A model's config made narrow: the same layers, in a stream so thin that it runs in no time.

What decides how a model attends stays: the number of layers, their kinds and their pattern, head
dimensions, latents, the ratio of query heads to KV heads. Windows and chunks get short, so that
requests of a few tokens pass out of them.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_WIDTH = 64
#: Tokens of windows and chunks.
_WINDOW = 8
#: An indexer selects at least so many tokens: all that a trial has.
_SELECTED = 64
#: Sizes that do not decide how a model attends, and what they become where they are larger.
_SIZES = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "ngram_vocab_size"), 128),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 32),
    **dict.fromkeys(
        ("n_inner", "ffn_hidden_size", "dense_intermediate_size", "d_ff", "d_inner"), 32
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("shared_intermediate_size", "intermediate_size_mlp", "expert_dim"), 16),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("share_expert_dim", "moe_latent_size", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("q_lora_rank", "o_lora_rank"), 32),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 8),
    **dict.fromkeys(("moe_num_experts", "num_experts_per_layer"), 8),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "top_k_experts"), 2),
    **dict.fromkeys(("moe_topk", "moe_k", "num_selects"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "o_groups"), 1),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_chunk_size"), _WINDOW),
    **dict.fromkeys(("window_size", "attention_window_size"), _WINDOW),
    **dict.fromkeys(("encoder_layers", "vision_layers"), 1),
}
#: Special tokens lie outside the vocabulary that is left.
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "embedding_size", "embed_dim", "word_embed_proj_dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "n_head_kv", "num_kv_heads")
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "depth")


def narrow(config: PreTrainedConfig, layers: int | None, *, square: bool) -> PreTrainedConfig:
    """The narrow config.

    Args:
        config: The model's.
        layers: Keep the decoder's first layers, so many of them; None keeps all.
        square: Make the stream as wide as the heads' queries together; some classes rely on it.

    Raises:
        Exception: The class does not take it, for whatever reason of its own.
    """
    values = config.to_dict()
    decoder = config.get_text_config(decoder=True)
    part = next((name for name in config.sub_configs if getattr(config, name) is decoder), None)
    inner = values[part] if part else values
    if layers is not None:
        _cut(inner, layers)
    _narrow(inner, square)
    for name in config.sub_configs:
        if name != part and isinstance(values.get(name), dict):
            _cut(values[name], 1)
            _narrow(values[name], square=False)
            if "out_hidden_size" in values[name]:
                values[name]["out_hidden_size"] = inner["hidden_size"]
    if part:
        for name in (*_TOKENS, "vocab_size"):
            if values.get(name) is not None:
                values[name] = inner.get(name, 0)
    built: PreTrainedConfig = type(config).from_dict(values)
    return built


def _cut(values: dict[str, Any], layers: int) -> None:
    """Keep the first layers, and what lists say of them."""
    name = next((name for name in _DEPTHS if _is_size(values.get(name))), None)
    if name is None or values[name] <= layers:
        return
    for other, value in values.items():
        if isinstance(value, list) and len(value) == values[name]:
            values[other] = value[:layers]
    for other in ("first_k_dense_replace", "num_dense_layers"):
        if _is_size(values.get(other)):
            values[other] = min(values[other], layers)
    values[name] = layers


def _narrow(values: dict[str, Any], square: bool) -> None:
    for name, most in _SIZES.items():
        if _is_size(values.get(name)):
            values[name] = min(values[name], most)
    if _is_size(values.get("index_topk")):
        values["index_topk"] = max(values["index_topk"], _SELECTED)
    for name in _TOKENS:
        if values.get(name) is not None:
            values[name] = _TOKENS.index(name)
    _narrow_heads(values, square)


def _narrow_heads(values: dict[str, Any], square: bool) -> None:
    """Two KV heads at most, and the stream as wide as the heads' queries or ``_WIDTH``."""
    heads_name = next((name for name in _HEADS if _is_size(values.get(name))), None)
    hidden_names = [name for name in _HIDDEN if _is_size(values.get(name))]
    if heads_name is None or not hidden_names:
        return
    heads, hidden = values[heads_name], values[hidden_names[0]]
    kv_names = [name for name in _KV_HEADS if _is_size(values.get(name))]
    kv_heads = values[kv_names[0]] if kv_names else heads
    fewer = min(kv_heads, 2)
    shared = heads // kv_heads if kv_heads <= heads else 1
    less = fewer * shared
    own = values.get("head_dim")
    width = less * (own or hidden // heads) if square or not own else lcm(_WIDTH, less)
    for name in hidden_names:
        values[name] = width
    for name in _HEADS:
        if values.get(name) == heads:
            values[name] = less
    for name in kv_names:
        values[name] = fewer if values[name] == kv_heads else values[name]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
