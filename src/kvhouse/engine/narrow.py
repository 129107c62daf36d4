"""A model's config made narrow: the same layers, in a stream so thin that it runs in no time.

What decides how a model attends stays: the number of layers, their kinds and their pattern, head
dimensions, latents, the ratio of query heads to KV heads. Windows and chunks get short, so that
requests of a few tokens pass out of them.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any, Literal

from kvhouse.engine.narrow_states import narrow_states

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Heads = Literal["few", "square", "all"]

_WIDTH = 64
#: Most KV heads, and most query heads to each.
_MOST_KV_HEADS, _MOST_SHARED = 2, 2
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


def narrow(config: PreTrainedConfig, layers: int | None, heads: Heads) -> PreTrainedConfig:
    """The narrow config.

    Args:
        config: The model's.
        layers: Keep the decoder's first layers, so many of them; None keeps all.
        heads: ``few`` of them, or few and a stream as wide as their queries together
            (``square``; some classes rely on it), or ``all`` (some count them in several fields).

    Raises:
        Exception: The class does not take it, for whatever reason of its own.
    """
    values = config.to_dict()
    decoder = config.get_text_config(decoder=True)
    part = next((name for name in config.sub_configs if getattr(config, name) is decoder), None)
    inner = values[part] if part else values
    if layers is not None:
        _cut(inner, layers)
    _narrow(inner, heads)
    narrow_states(inner)
    for name in config.sub_configs:
        if name != part and isinstance(values.get(name), dict):
            _cut(values[name], 1)
            _narrow(values[name], "few")
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
        if isinstance(value, list | str) and len(value) == values[name]:
            values[other] = value[:layers]
    own = values.get("per_layer_config")
    if isinstance(own, dict):
        values["per_layer_config"] = {n: one for n, one in own.items() if int(n) < layers}
    for other in ("first_k_dense_replace", "num_dense_layers"):
        if _is_size(values.get(other)):
            values[other] = min(values[other], layers)
    values[name] = layers


def _narrow(values: dict[str, Any], heads: Heads) -> None:
    for name, most in _SIZES.items():
        if _is_size(values.get(name)):
            values[name] = min(values[name], most)
    if _is_size(values.get("index_topk")):
        values["index_topk"] = max(values["index_topk"], _SELECTED)
    for name in _TOKENS:
        if values.get(name) is not None:
            values[name] = _TOKENS.index(name)
    _narrow_heads(values, heads)


def _narrow_heads(values: dict[str, Any], choice: Heads) -> None:
    """Make the stream as narrow as its heads allow."""
    heads = next((values[name] for name in _HEADS if _is_size(values.get(name))), None)
    hidden = next((values[name] for name in _HIDDEN if _is_size(values.get(name))), None)
    if heads is None or hidden is None:
        return
    kv_heads = next((values[name] for name in _KV_HEADS if _is_size(values.get(name))), heads)
    fewer, each = kv_heads, max(1, heads // kv_heads)
    if choice != "all":
        fewer, each = min(kv_heads, _MOST_KV_HEADS), min(each, _MOST_SHARED)
    own = values.get("head_dim")
    less = fewer * each
    width = lcm(_WIDTH, less) if own and choice != "square" else less * (own or hidden // heads)
    for names, old, new in (
        (_HIDDEN, None, width),
        (_HEADS, heads, less),
        (_KV_HEADS, kv_heads, fewer),
    ):
        for name in names:
            if _is_size(values.get(name)) and old in (None, values[name]):
                values[name] = new


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
