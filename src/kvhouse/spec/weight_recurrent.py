"""Parts of layers of recurrent and hybrid families that are like no other's."""

from __future__ import annotations

from kvhouse.spec.attention import head_dim, kv_heads
from kvhouse.spec.config import Config
from kvhouse.spec.pattern_rules import HYBRID, LINEAR, MLP, MOE
from kvhouse.spec.patterns import layer_types
from kvhouse.spec.weight_experts import expert_count, routed_experts
from kvhouse.spec.weight_mixers import MAMBA_BIASES, Biases, Mamba2, attention, mamba1, mamba2
from kvhouse.spec.weight_states import nemotron_mamba
from kvhouse.spec.weights import Form, Part, linear, mlp, on

_ATTENTION = Form(qkv_bias="attention_bias", output_bias="attention_bias")
_NOT_GATED = Form(gated=False)


def nemotron(config: Config, index: int, kind: str) -> Part:
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


def griffin_mlp(config: Config, _: int, __: str) -> Part:
    """The width is stated for both branches together."""
    return mlp(config.size("intermediate_size") // 2, config.hidden, _ATTENTION, True)


def rwkv(config: Config, _: int, __: str) -> Part:
    """RWKV 4 (arXiv 2305.13048): time mixing and channel mixing."""
    hidden = config.hidden
    own = config.maybe("attention_hidden_size") or hidden
    inner = config.maybe("intermediate_size") or 4 * hidden
    part = linear(3 * own, hidden) + linear(hidden, own) + linear(hidden, hidden)
    return part + linear(2 * inner, hidden) + Part(others=2 * own + 5 * hidden)


def xlstm(config: Config, _: int, __: str) -> Part:
    """The mLSTM (arXiv 2405.04517) and its gated MLP, widths rounded up."""
    hidden, heads, bias = config.hidden, config.heads, on(config, "use_bias")
    keys = rounded_up(hidden * config.number("qk_dim_factor"), 64)
    values = rounded_up(hidden * config.number("v_dim_factor"), 64)
    inner = rounded_up(
        hidden * config.number("ffn_proj_factor"), config.size("ffn_round_up_to_multiple_of")
    )
    part = linear(2 * keys + 2 * values, hidden, bias) + linear(2 * heads, hidden, True)
    part += linear(hidden, values, bias) + Part(others=values * (1 + bias) + 2 * hidden * bias)
    return part + mlp(inner, hidden, _ATTENTION, bias)


def rounded_up(width: float, multiple: int) -> int:
    """The next multiple."""
    return -(-int(width) // multiple) * multiple


def zamba2(config: Config, _: int, kind: str) -> Part:
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


def zamba(config: Config, _: int, kind: str) -> Part:
    """Zamba: the same with Mamba's first form, whose small projections are one per head."""
    part = mamba1(config, MAMBA_BIASES)
    return part + linear(config.hidden, config.hidden) if kind == HYBRID else part


def zamba_shared(config: Config) -> Part:
    """The block that the hybrid layers share; it sees the stream and the embeddings."""
    hidden, heads, kv, dim = config.hidden, config.heads, kv_heads(config), head_dim(config)
    block = linear((heads + 2 * kv) * dim, 2 * hidden) + linear(hidden, heads * dim)
    return block + mlp(config.size("intermediate_size"), hidden, Form()) + Part(others=3 * hidden)


def zamba2_shared(config: Config) -> Part:
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
