"""Forms of families whose layers are unlike all others'."""

from __future__ import annotations

from dataclasses import replace

from kvhouse.spec import weight_deepseek4 as v4
from kvhouse.spec.attention import head_dim
from kvhouse.spec.config import Config
from kvhouse.spec.experts import Experts
from kvhouse.spec.pattern_rules import SLIDING
from kvhouse.spec.weight_experts import everywhere, expert_count, from_layer, routed_experts
from kvhouse.spec.weight_gemma import (
    altup,
    altup_ends,
    gemma3n_feed,
    gemma4_attention,
    gemma4_feed,
    gemma_attention,
    per_layer_gate,
    per_layer_table,
)
from kvhouse.spec.weight_mixers import (
    latent,
)
from kvhouse.spec.weight_recurrent import (
    griffin_mlp,
    nemotron,
    rounded_up,
    rwkv,
    xlstm,
    zamba,
    zamba2,
    zamba2_shared,
    zamba_shared,
)
from kvhouse.spec.weights import Form, Part, linear, mlp

_ATTENTION = Form(qkv_bias="attention_bias", output_bias="attention_bias")
_NOT_GATED = Form(gated=False)


def _nothing(_: Config, __: int, ___: str) -> Part:
    return Part()


def _dbrx_experts(config: Config, _: int, __: str) -> Part:
    own = config.inner("ffn_config")
    stated = own.maybe if own else lambda _: None
    experts = stated("moe_num_experts") or 4
    width, active = stated("ffn_hidden_size") or 3584, stated("moe_top_k") or 1
    routed = Experts(1, experts, min(active, experts), 3 * width * config.hidden)
    return linear(experts, config.hidden) + Part(experts=(routed,))


def _longcat_mixer(config: Config, index: int, kind: str) -> Part:
    """LongCat-Flash: two attentions and two MLPs in each layer, beside one mixture."""
    dense = mlp(config.size("ffn_hidden_size"), config.hidden, _ATTENTION)
    return (latent(config, _ATTENTION, index, kind) + dense).times(2)


def _longcat_experts(config: Config, _: int, __: str) -> Part:
    experts, zero = expert_count(config), config.maybe("zero_expert_num", 0) or 0
    each = 3 * config.size("expert_ffn_hidden_size") * config.hidden
    return linear(experts + zero, config.hidden, True) + routed_experts(config, experts, each)


def _jetmoe(config: Config, _: int, __: str) -> Part:
    """JetMoE: experts also hold the query and output projections."""
    hidden, experts, active = (
        config.hidden,
        expert_count(config),
        config.size("num_experts_per_tok"),
    )
    keys = config.size("num_key_value_heads") * head_dim(config)
    inner = config.size("intermediate_size")
    part = linear(2 * keys, hidden) + (linear(experts, hidden) + Part(others=hidden)).times(2)
    sizes = (2 * keys * hidden, 3 * inner * hidden)
    return part + Part(experts=tuple(Experts(1, experts, active, each) for each in sizes))


def _mimo_sinks(config: Config, _: int, kind: str) -> Part:
    return Part(others=config.heads * (kind == SLIDING))


def _minimax_indexer(config: Config, _: int, kind: str) -> Part:
    """MiniMax-M3's block indexer: queries, one key, and a norm of each."""
    if kind != "minimax_m3_sparse":
        return Part()
    dim = config.size("index_head_dim")
    return linear((config.size("index_n_heads") + 1) * dim, config.hidden) + Part(others=2 * dim)


def _axk1_norm(config: Config, index: int, _: str) -> Part:
    sparse = from_layer("first_k_dense_replace", default=1)(config)(index)
    return Part(others=config.hidden * sparse)


def _mllama_gates(config: Config, index: int, _: str) -> Part:
    """Llama 3.2 Vision: layers that attend to images have norms and two gates."""
    across = config.integers("cross_attention_layers")
    at = {3, 8, 13, 18, 23, 28, 33, 38} if across is None else set(across)
    return Part(others=(2 * head_dim(config) + 2) * (index in at))


def _moshi_feed(config: Config, _: int, __: str) -> Part:
    """Moshi: the width is stated for both branches together."""
    return mlp(config.size("ffn_dim") // 2, config.hidden, _ATTENTION)


def nas_mixer(config: Config, index: int, _: str) -> Part:
    """A block found by search: attention, a matrix or nothing; the norm goes with it."""
    own = _block(config, index, "attention")
    if own.flag("no_op", False):
        return Part()
    hidden, dim, norm = config.hidden, head_dim(config), Part(others=config.hidden)
    if own.flag("replace_with_linear", False):
        return linear(hidden, hidden) + norm
    kv = max(1, config.heads // own.size("n_heads_in_group"))
    out = linear(hidden, config.heads * dim)
    return linear((config.heads + 2 * kv) * dim, hidden) + out + norm


def nas_feed(config: Config, index: int, _: str) -> Part:
    """The same for the MLP, whose width is a multiple of the stream's, rounded up to 256."""
    own = _block(config, index, "ffn")
    if own.flag("no_op", False):
        return Part()
    if own.flag("replace_with_linear", False):
        return linear(config.hidden, config.hidden) + Part(others=config.hidden)
    inner = own.maybe("intermediate_size")
    if inner is None:
        inner = rounded_up(int(2 * own.number("ffn_mult") * config.hidden / 3), 256)
    return mlp(inner, config.hidden, _ATTENTION) + Part(others=config.hidden)


def _block(config: Config, index: int, name: str) -> Config:
    blocks = config.inners("block_configs")
    own = blocks[index].inner(name) if index < len(blocks) else None
    if own is None:
        raise config.error("block_configs", f"has no {name!r} for layer {index}")
    return own


_FROM_FIRST = from_layer("first_k_dense_replace", default=1)
_DEEPSEEK = replace(_ATTENTION, sparse=_FROM_FIRST, shared="count", router=1)

RARE = {
    "axk1": replace(_DEEPSEEK, beside=(_axk1_norm,)),
    "bailing_hybrid": replace(_DEEPSEEK, gate="head", ties=False),
    "beam": replace(
        _ATTENTION, norms=4, qk_norm="dim", gate="dim", sinks=True, sparse=from_layer(default=3)
    ),
    "cohere2_moe": replace(
        _ATTENTION,
        norms=1,
        sparse=from_layer("first_k_dense_replace"),
        shared="count",
        widths=("prefix_dense_intermediate_size", "intermediate_size"),
    ),
    "dbrx": Form(feed=_dbrx_experts),
    "deepseek_v32": replace(_DEEPSEEK, sparse=from_layer("first_k_dense_replace", default=3)),
    "deepseek_v4": replace(
        _ATTENTION,
        mixer=v4.attention,
        sparse=everywhere,
        shared="count",
        beside=(v4.hyper_connections, v4.correction),
        once=(v4.hyper_head,),
    ),
    "falcon_mamba": Form(norms=1, feed=_nothing),
    "gemma3n_text": Form(
        norms=4,
        mixer=gemma_attention,
        feed=gemma3n_feed,
        beside=(altup, per_layer_gate),
        once=(altup_ends, per_layer_table),
    ),
    **dict.fromkeys(
        ["gemma4_text", "gemma4_unified_text"],
        Form(
            norms=4,
            mixer=gemma4_attention,
            feed=gemma4_feed,
            beside=(per_layer_gate,),
            once=(per_layer_table,),
        ),
    ),
    "glm_moe_dsa": replace(_DEEPSEEK, sparse=from_layer("first_k_dense_replace", default=3)),
    "gpt_oss": replace(_ATTENTION, sinks=True, sparse=everywhere, router=1, expert_bias=True),
    "hrm_text": replace(
        _ATTENTION,
        norms=0,
        final_norm=False,
        mlp_bias="mlp_bias",
        gate="dim",
        gate_bias="attention_bias",
        once=(lambda config: Part(others=config.hidden),),
    ),
    "hunyuan_v1_moe": replace(_ATTENTION, qk_norm="dim", sparse=everywhere, shared="one"),
    "jetmoe": Form(mixer=_jetmoe, feed=_nothing),
    "kimi_linear": replace(_DEEPSEEK, ties=False),
    "longcat_flash": replace(_ATTENTION, norms=4, mixer=_longcat_mixer, feed=_longcat_experts),
    "mamba": Form(norms=1, feed=_nothing),
    "mamba2": Form(norms=1, feed=_nothing),
    "mimo_v2_flash": Form(
        qkv_bias="attention_bias", sparse=from_layer(default=1), router=1, beside=(_mimo_sinks,)
    ),
    "minimax_m3_vl_text": Form(
        qk_norm="dim",
        sparse=everywhere,
        shared="width",
        router=1,
        widths=("dense_intermediate_size",),
        beside=(_minimax_indexer,),
    ),
    "mllama_text_model": Form(
        beside=(_mllama_gates,), once=(lambda config: Part(others=8 * config.hidden),)
    ),
    "moshi": Form(feed=_moshi_feed, once=(lambda config: Part(others=config.hidden),)),
    "nemotron_h": Form(norms=1, ties=False, mixer=nemotron, feed=_nothing),
    "olmo_hybrid": replace(_ATTENTION, qk_norm="width"),
    "recurrent_gemma": Form(qkv_bias="attention_bias", output_bias=True, feed=griffin_mlp),
    "rwkv": Form(
        norm=2,
        mixer=rwkv,
        feed=_nothing,
        once=(lambda config: Part(others=2 * config.hidden),),
    ),
    "zamba": Form(norms=1, mixer=zamba, feed=_nothing, once=(zamba_shared,)),
    "zamba2": Form(norms=1, mixer=zamba2, feed=_nothing, once=(zamba2_shared,)),
    "xlstm": Form(mixer=xlstm, feed=_nothing, ties=False),
}
