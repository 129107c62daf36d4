"""Models whose cache has one entry for each layer of ``layer_types``, from a config."""

from __future__ import annotations

from kvhouse.spec.attention import attention, indexer
from kvhouse.spec.config import Config
from kvhouse.spec.layers import Combined, Layer, SharedKV, WithoutKV
from kvhouse.spec.pattern_rules import (
    CHUNKED,
    CONV,
    CSA,
    HCA,
    HYBRID,
    HYBRID_SLIDING,
    INDEXED,
    LINEAR,
    MLP,
    MOE,
    SLIDING,
    SPARSE,
    window,
)
from kvhouse.spec.patterns import layer_types
from kvhouse.spec.rare_layers import CompressedEntries, PendingTokens, PreviousGroup, SharedVector
from kvhouse.spec.states import state


def plain_layers(config: Config) -> list[Layer]:
    """The layers of a model whose cache has one entry per layer."""
    kinds = layer_types(config)
    shared = len(kinds) - (config.maybe("num_kv_shared_layers", least=0) or 0)
    return [
        one_layer(config, index, kind) if index < shared else SharedKV()
        for index, kind in enumerate(kinds)
    ]


def one_layer(config: Config, index: int, kind: str) -> Layer:
    """What a layer of one kind keeps."""
    if kind in (MOE, MLP):
        return WithoutKV()
    if kind in (LINEAR, CONV):
        return state(config, index)
    if kind in (HCA, CSA):
        return _compressed(config, kind == CSA)
    tokens = _window_of(config) if kind in (SLIDING, HYBRID_SLIDING) else None
    if config.model_type == "deepseek_v4":
        return SharedVector(
            config.heads, config.size("head_dim"), tokens or config.size("sliding_window")
        )
    chunk = config.size("attention_chunk_size") if kind == CHUNKED else None
    attends = attention(config, index, tokens, chunk)
    if kind in (INDEXED, SPARSE):
        beside: tuple[Layer, ...] = indexer(config, index)
    elif kind in (HYBRID, HYBRID_SLIDING):
        beside = (state(config, index, kind == HYBRID_SLIDING),)
    else:
        beside = ()
    return Combined((attends, *beside)) if beside else attends


def _window_of(config: Config) -> int:
    tokens = window(config)
    if tokens is None:
        raise config.error(config.stated_name("sliding_window"), "is missing, but layers slide")
    return tokens


def _compressed(config: Config, sparse: bool) -> Layer:
    """DeepSeek-V4: a window, entries for what went before, and what waits to become one."""
    dim, tokens = config.size("head_dim"), config.size("sliding_window")
    name = CSA if sparse else HCA
    rates = config.inner("compress_rates")
    stated = config.maybe("compress_rate_csa" if sparse else "compress_rate_hca")
    ratio = stated or (rates.maybe(name) if rates else None) or (4 if sparse else 128)
    near = SharedVector(config.heads, dim, tokens)
    if not sparse:
        return Combined((near, CompressedEntries(dim, ratio), PendingTokens(dim, ratio)))
    entry = dim + config.size("index_head_dim")
    # Entries of this kind are made of two groups, so each token waits with two vectors.
    waiting = PendingTokens(2 * entry, ratio)
    return Combined((near, CompressedEntries(entry, ratio), waiting, PreviousGroup(entry, ratio)))
