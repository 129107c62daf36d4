"""Gemma 3n and 4: per-layer embeddings, layers without keys and values, experts beside an MLP."""

from __future__ import annotations

from kvhouse.spec.config import Config
from kvhouse.spec.pattern_rules import SLIDING
from kvhouse.spec.weight_experts import expert_count, routed_experts
from kvhouse.spec.weight_mixers import attention, heads_of
from kvhouse.spec.weights import Form, Part, linear, mlp

_GEMMA = Form(qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="dim")


def _reads_earlier(config: Config, index: int) -> bool:
    shared = config.maybe("num_kv_shared_layers", 0) or 0
    return index >= config.layers - shared


def gemma_attention(config: Config, index: int, kind: str) -> Part:
    """Attention; the last layers have no keys and values of their own."""
    return attention(config, _GEMMA, index, kind, keeps=not _reads_earlier(config, index))


def gemma4_attention(config: Config, index: int, kind: str) -> Part:
    """The same; full layers may use their keys as values."""
    part = gemma_attention(config, index, kind)
    same = config.flag("attention_k_eq_v", False) and kind != SLIDING
    if not same or _reads_earlier(config, index):
        return part
    heads = heads_of(config, index, kind)
    values = heads.kv_heads * heads.value_dim
    bias = values * config.flag("attention_bias", False)
    return part + Part(-values * config.hidden, -bias)


def gemma4_feed(config: Config, index: int, _: str) -> Part:
    """An MLP, twice as wide in layers without keys if a flag says so, and experts beside it."""
    wide = config.flag("use_double_wide_mlp", False) and _reads_earlier(config, index)
    hidden = config.hidden
    part = mlp(config.size("intermediate_size") * (2 if wide else 1), hidden, _GEMMA)
    if not config.flag("enable_moe_block", False):
        return part
    experts = expert_count(config)
    each = mlp(config.size("moe_intermediate_size"), hidden, _GEMMA).matrices
    part += linear(experts, hidden) + Part(others=hidden + experts + 3 * hidden)
    return part + routed_experts(config, experts, each)


def gemma3n_feed(config: Config, index: int, _: str) -> Part:
    """An MLP whose width may be stated for each layer."""
    stated = config.stated.get("intermediate_size")
    if not isinstance(stated, list):
        return mlp(config.size("intermediate_size"), config.hidden, _GEMMA)
    widths = config.integers("intermediate_size") or []
    if len(widths) <= index:
        problem = f"names {len(widths)} layers, but there are {config.layers}"
        raise config.error("intermediate_size", problem)
    return mlp(widths[index], config.hidden, _GEMMA)


def altup(config: Config, _: int, __: str) -> Part:
    """Gemma 3n: AltUp (arXiv 2301.13310) and the low-rank residual of each layer."""
    inputs, hidden, rank = (
        config.size("altup_num_inputs"),
        config.hidden,
        config.size("laurel_rank"),
    )
    part = linear(inputs, inputs) + linear(inputs**2, inputs) + linear(inputs, hidden)
    return part + linear(rank, hidden) + linear(hidden, rank) + Part(others=3 * hidden)


def altup_ends(config: Config) -> Part:
    """Gemma 3n: a projection of each further stream, into the layers and out of them."""
    further = config.size("altup_num_inputs") - 1
    return linear(config.hidden, config.hidden).times(2 * further)


def per_layer_gate(config: Config, _: int, __: str) -> Part:
    """A layer's own embedding: a gate, a projection and a norm."""
    width, hidden = config.maybe("hidden_size_per_layer_input", 0) or 0, config.hidden
    if not width:
        return Part()
    return linear(width, hidden) + linear(hidden, width) + Part(others=hidden)


def per_layer_table(config: Config) -> Part:
    """The table of the layers' own embeddings, a projection beside it and a norm."""
    width = config.maybe("hidden_size_per_layer_input", 0) or 0
    if not width:
        return Part()
    rows, columns = config.size("vocab_size_per_layer_input"), config.layers * width
    return Part(others=rows * columns + width) + linear(columns, config.hidden)
