"""Parts of DeepSeek-V4's layers: shared key-value vectors, compressors, hyper-connections."""

from __future__ import annotations

from kvhouse.spec.config import Config
from kvhouse.spec.pattern_rules import CSA, HCA
from kvhouse.spec.weight_experts import expert_count
from kvhouse.spec.weights import Part, linear


def attention(config: Config, _: int, kind: str) -> Part:
    """DeepSeek-V4: one vector as key and value, grouped output, compressors."""
    hidden, dim, rank = config.hidden, config.size("head_dim"), config.size("q_lora_rank")
    query, groups = config.heads * dim, config.size("o_groups")
    low = groups * config.size("o_lora_rank")
    part = linear(rank, hidden) + linear(query, rank) + linear(dim, hidden)
    part += linear(low, query // groups) + linear(hidden, low)
    part += Part(others=rank + dim + config.heads)
    return part + _compressor(config, kind) if kind in (HCA, CSA) else part


def _compressor(config: Config, kind: str) -> Part:
    hidden, dim, rates = config.hidden, config.size("head_dim"), config.inner("compress_rates")
    sparse = kind == CSA
    stated = config.maybe("compress_rate_csa" if sparse else "compress_rate_hca")
    ratio = stated or (rates.maybe(kind) if rates else None) or (4 if sparse else 128)
    part = _compress(hidden, dim, ratio, 2 if sparse else 1)
    if not sparse:
        return part
    heads, index = config.size("index_n_heads"), config.size("index_head_dim")
    part += linear(heads * index, config.size("q_lora_rank")) + linear(heads, hidden)
    return part + _compress(hidden, index, ratio, 2)


def _compress(hidden: int, dim: int, ratio: int, groups: int) -> Part:
    """Vector and gate of what is compressed, their positions and a norm."""
    return linear(2 * groups * dim, hidden) + Part(others=ratio * groups * dim + dim)


def correction(config: Config, index: int, _: str) -> Part:
    """The correction of the router, except in the first layers, which look experts up by token."""
    listed = config.texts("mlp_layer_types")
    hashed = config.maybe("num_hash_layers", 0)
    looks_up = index < (3 if hashed is None else hashed)
    if listed:
        looks_up = index < len(listed) and listed[index] == "hash_moe"
    return Part(others=0 if looks_up else expert_count(config))


def hyper_connections(config: Config, _: int, __: str) -> Part:
    """Hyper-connections around attention and experts."""
    streams = config.size("hc_mult")
    mixes = streams * (2 + streams)
    return (linear(mixes, streams * config.hidden) + Part(others=mixes + 3)).times(2)


def hyper_head(config: Config) -> Part:
    """What brings the streams together after the last layer."""
    streams = config.size("hc_mult")
    return linear(streams, streams * config.hidden) + Part(others=streams + 1)
