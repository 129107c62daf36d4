"""Forms of families whose layers are unlike all others'."""

from __future__ import annotations

from dataclasses import replace

from kvhouse.spec.attention import head_dim, kv_heads
from kvhouse.spec.config import Config
from kvhouse.spec.experts import Experts
from kvhouse.spec.pattern_rules import CSA, HCA, HYBRID, LINEAR, MLP, MOE, SLIDING
from kvhouse.spec.patterns import layer_types
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
    MAMBA_BIASES,
    Biases,
    Mamba2,
    attention,
    latent,
    mamba1,
    mamba2,
)
from kvhouse.spec.weight_states import nemotron_mamba
from kvhouse.spec.weights import Form, Part, linear, mlp, on

_ATTENTION = Form(qkv_bias="attention_bias", output_bias="attention_bias")
_NOT_GATED = Form(gated=False)


def _nothing(_: Config, __: int, ___: str) -> Part:
    return Part()


def _nemotron(config: Config, index: int, kind: str) -> Part:
    """Nemotron-H: a layer is a state, attention, an MLP or a mixture, each with one norm."""
    bias = on(config, "mlp_bias")
    if kind == LINEAR:
        return nemotron_mamba(config)
    if kind == MLP:
        return mlp(config.size("intermediate_size"), config.hidden, _NOT_GATED, bias)
    if kind != MOE:
        return attention(config, Form(), index, kind)
    hidden, experts, narrow = config.hidden, expert_count(config), config.maybe("moe_latent_size")
    shared = config.size("moe_shared_expert_intermediate_size")
    part = linear(experts, hidden, True) + mlp(shared, hidden, _NOT_GATED, bias)
    if narrow:
        part += linear(narrow, hidden, bias) + linear(hidden, narrow, bias)
    each = mlp(config.size("moe_intermediate_size"), narrow or hidden, _NOT_GATED)
    return part + routed_experts(config, experts, each.matrices)


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


def _griffin_attention(config: Config, index: int, kind: str) -> Part:
    form = replace(_ATTENTION, output_bias=True)
    return attention(config, form, index, kind)


def _griffin_mlp(config: Config, _: int, __: str) -> Part:
    """The width is stated for both branches together."""
    return mlp(config.size("intermediate_size") // 2, config.hidden, _ATTENTION, True)


def _mllama_gates(config: Config, index: int, _: str) -> Part:
    """Llama 3.2 Vision: layers that attend to images have norms and two gates."""
    across = config.integers("cross_attention_layers")
    at = {3, 8, 13, 18, 23, 28, 33, 38} if across is None else set(across)
    return Part(others=(2 * head_dim(config) + 2) * (index in at))


def _moshi_feed(config: Config, _: int, __: str) -> Part:
    """Moshi: the width is stated for both branches together."""
    return mlp(config.size("ffn_dim") // 2, config.hidden, _ATTENTION)


def _rwkv(config: Config, _: int, __: str) -> Part:
    """RWKV 4 (arXiv 2305.13048): time mixing and channel mixing."""
    hidden = config.hidden
    own = config.maybe("attention_hidden_size") or hidden
    inner = config.maybe("intermediate_size") or 4 * hidden
    part = linear(3 * own, hidden) + linear(hidden, own) + linear(hidden, hidden)
    return part + linear(2 * inner, hidden) + Part(others=2 * own + 5 * hidden)


def _xlstm(config: Config, _: int, __: str) -> Part:
    """The mLSTM (arXiv 2405.04517) and its gated MLP, widths rounded up."""
    hidden, heads, bias = config.hidden, config.heads, on(config, "use_bias")
    keys = _up(hidden * config.number("qk_dim_factor"), 64)
    values = _up(hidden * config.number("v_dim_factor"), 64)
    inner = _up(
        hidden * config.number("ffn_proj_factor"), config.size("ffn_round_up_to_multiple_of")
    )
    part = linear(2 * keys + 2 * values, hidden, bias) + linear(2 * heads, hidden, True)
    part += linear(hidden, values, bias) + Part(others=values * (1 + bias) + 2 * hidden * bias)
    return part + mlp(inner, hidden, _ATTENTION, bias)


def _up(width: float, multiple: int) -> int:
    return -(-int(width) // multiple) * multiple


def _v4_attention(config: Config, _: int, kind: str) -> Part:
    """DeepSeek-V4: one vector as key and value, grouped output, compressors."""
    hidden, dim, rank = config.hidden, config.size("head_dim"), config.size("q_lora_rank")
    query, groups = config.heads * dim, config.size("o_groups")
    low = groups * config.size("o_lora_rank")
    part = linear(rank, hidden) + linear(query, rank) + linear(dim, hidden)
    part += linear(low, query // groups) + linear(hidden, low)
    part += Part(others=rank + dim + config.heads)
    return part + _v4_compressor(config, kind) if kind in (HCA, CSA) else part


def _v4_compressor(config: Config, kind: str) -> Part:
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


def _v4_correction(config: Config, index: int, _: str) -> Part:
    """The correction of the router, except in the first layers, which look experts up by token."""
    listed = config.texts("mlp_layer_types")
    hashed = config.maybe("num_hash_layers", 0)
    looks_up = index < (3 if hashed is None else hashed)
    if listed:
        looks_up = index < len(listed) and listed[index] == "hash_moe"
    return Part(others=0 if looks_up else expert_count(config))


def _hyper(config: Config, _: int, __: str) -> Part:
    """Hyper-connections around attention and experts."""
    streams = config.size("hc_mult")
    mixes = streams * (2 + streams)
    return (linear(mixes, streams * config.hidden) + Part(others=mixes + 3)).times(2)


def _hyper_head(config: Config) -> Part:
    streams = config.size("hc_mult")
    return linear(streams, streams * config.hidden) + Part(others=streams + 1)


def _zamba2(config: Config, _: int, kind: str) -> Part:
    """Zamba 2: a state in every layer, and in hybrid ones a matrix after the shared block."""
    sizes = Mamba2(
        int(config.number("mamba_expand") * config.hidden),
        groups=config.size("mamba_ngroups"),
        size=config.size("mamba_d_state"),
        heads=config.size("n_mamba_heads"),
        kernel=config.size("mamba_d_conv"),
    )
    part = mamba2(config, sizes, Biases("add_bias_linear", True, "add_bias_linear"))
    return part + linear(config.hidden, config.hidden) if kind == HYBRID else part


def _zamba(config: Config, _: int, kind: str) -> Part:
    """Zamba: the same with Mamba's first form, whose small projections are one per head."""
    part = mamba1(config, MAMBA_BIASES)
    return part + linear(config.hidden, config.hidden) if kind == HYBRID else part


def _zamba_shared(config: Config) -> Part:
    """The block that the hybrid layers share; it sees the stream and the embeddings."""
    hidden, heads, kv, dim = config.hidden, config.heads, kv_heads(config), head_dim(config)
    block = linear((heads + 2 * kv) * dim, 2 * hidden) + linear(hidden, heads * dim)
    return block + mlp(config.size("intermediate_size"), hidden, Form()) + Part(others=3 * hidden)


def _zamba2_shared(config: Config) -> Part:
    """The blocks that the hybrid layers share, with an adapter for each of those layers."""
    hybrids, hidden = layer_types(config).count(HYBRID), config.hidden
    heads, kv, dim, wide = config.heads, kv_heads(config), head_dim(config), 2 * config.hidden
    block = linear((heads + 2 * kv) * dim, wide) + linear(hidden, heads * dim)
    inner, bias = config.size("intermediate_size"), on(config, "add_bias_linear")
    block += linear(2 * inner, hidden, bias) + linear(hidden, inner, bias)
    block += Part(others=wide + hidden)
    rank = config.size("adapter_rank")
    adapter = linear(rank, hidden) + linear(2 * inner, rank)
    if config.flag("use_shared_attention_adapter", False):
        adapter += (linear(rank, wide) + linear(wide, rank)).times(3)
    blocks = min(config.size("num_mem_blocks"), hybrids)
    return block.times(blocks) + adapter.times(hybrids)


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
        inner = _up(int(2 * own.number("ffn_mult") * config.hidden / 3), 256)
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
        mixer=_v4_attention,
        sparse=everywhere,
        shared="count",
        beside=(_hyper, _v4_correction),
        once=(_hyper_head,),
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
    "nemotron_h": Form(norms=1, ties=False, mixer=_nemotron, feed=_nothing),
    "olmo_hybrid": replace(_ATTENTION, qk_norm="width"),
    "recurrent_gemma": Form(qkv_bias="attention_bias", output_bias=True, feed=_griffin_mlp),
    "rwkv": Form(
        norm=2,
        mixer=_rwkv,
        feed=_nothing,
        once=(lambda config: Part(others=2 * config.hidden),),
    ),
    "zamba": Form(norms=1, mixer=_zamba, feed=_nothing, once=(_zamba_shared,)),
    "zamba2": Form(norms=1, mixer=_zamba2, feed=_nothing, once=(_zamba2_shared,)),
    "xlstm": Form(mixer=_xlstm, feed=_nothing, ties=False),
}
