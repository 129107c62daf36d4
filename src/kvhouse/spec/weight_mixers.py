"""Parts of layers that mix tokens: attention, latent attention, states."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.spec.attention import head_dim, kv_heads
from kvhouse.spec.config import Config
from kvhouse.spec.layers import FullAttention, LatentAttention
from kvhouse.spec.plain_models import one_layer
from kvhouse.spec.weights import Form, Part, Switch, linear, norm, on


def heads_of(config: Config, index: int, kind: str) -> FullAttention:
    """The heads of layer ``index``."""
    for part in one_layer(config, index, kind).parts:
        if isinstance(part, FullAttention):
            return part
    return FullAttention(config.heads, kv_heads(config), head_dim(config), head_dim(config))


def attention(config: Config, form: Form, index: int, kind: str, keeps: bool = True) -> Part:
    """Query, key, value and output projections, with their norms, gates and sinks.

    ``keeps`` False leaves keys and values out: the layer reads an earlier one's.
    """
    heads, hidden = heads_of(config, index, kind), config.hidden
    query = heads.query_heads * heads.key_dim
    key, value = heads.kv_heads * heads.key_dim, heads.kv_heads * heads.value_dim
    bias, out = on(config, form.qkv_bias), heads.query_heads * heads.value_dim
    part = linear(query, hidden, bias) + linear(hidden, out, on(config, form.output_bias))
    if keeps:
        part += linear(key, hidden, bias and form.key_bias) + linear(value, hidden, bias)
    if form.qk_norm and on(config, form.qk_when):
        widths = (query, key) if form.qk_norm == "width" else (heads.key_dim, heads.key_dim)
        part += Part(others=form.qk_vectors * sum(widths[: 2 if keeps else 1]))
    if form.gate and on(config, form.gate_when):
        outputs = out if form.gate == "dim" else heads.query_heads
        part += linear(outputs, hidden, on(config, form.gate_bias))
    return part + Part(others=heads.query_heads * form.sinks)


def cross_attention(config: Config, form: Form) -> Part:
    """Attention to another input, as many heads as for the layer's own tokens, and its norm."""
    hidden, bias = config.hidden, on(config, form.qkv_bias)
    part = linear(hidden, hidden, bias).times(2) + linear(hidden, hidden, bias and form.key_bias)
    return part + linear(hidden, hidden, on(config, form.output_bias)) + norm(config, form)


def latent(config: Config, form: Form, index: int, kind: str) -> Part:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    Queries go through a rank of their own if one is stated; keys and values are unfolded from the
    latent that is kept.
    """
    kept = next(
        part for part in one_layer(config, index, kind).parts if isinstance(part, LatentAttention)
    )
    hidden, heads, bias = config.hidden, config.heads, on(config, form.qkv_bias)
    plain, value = config.size("qk_nope_head_dim"), config.size("v_head_dim")
    query, rank = heads * (plain + kept.rope_dim), config.maybe("q_lora_rank")
    part = linear(kept.rank + kept.rope_dim, hidden, bias) + Part(others=kept.rank)
    part += linear(heads * (plain + value), kept.rank)
    part += linear(hidden, heads * value, on(config, form.output_bias))
    if form.gate:
        part += linear(heads, hidden)
    if config.flag("mla_use_output_gate", False):  # Kimi K3
        part += linear(heads * value, hidden)
    if rank is None:
        return part + linear(query, hidden)
    return part + linear(rank, hidden, bias) + Part(others=rank) + linear(query, rank)


def sparse_indexer(config: Config) -> Part:
    """DeepSeek-V3.2's lightning indexer: queries from the latent, one key, a weight per head."""
    heads, dim = config.size("index_n_heads"), config.size("index_head_dim")
    part = linear(heads * dim, config.size("q_lora_rank")) + linear(dim, config.hidden)
    return part + Part(others=2 * dim) + linear(heads, config.hidden)


@dataclass(frozen=True, slots=True)
class Biases:
    """Which parts of a Mamba mixer have biases: projections in and out, and the convolution."""

    inward: Switch
    convolution: Switch
    outward: Switch


MAMBA_BIASES = Biases("mamba_proj_bias", "mamba_conv_bias", "mamba_proj_bias")
BIASES = Biases("use_bias", "use_conv_bias", "use_bias")


def mamba1(config: Config, biases: Biases, normed: bool = False) -> Part:
    """Mamba (arXiv 2312.00752); ``normed`` where step, B and C have norms (Jamba)."""
    hidden = config.hidden
    inner = int(config.number("expand" if config.states("expand") else "mamba_expand") * hidden)
    size, kernel = (
        config.either("state_size", "mamba_d_state"),
        config.either("conv_kernel", "mamba_d_conv"),
    )
    rank = _step_rank(config)
    conv_bias = on(config, biases.convolution)
    part = linear(2 * inner, hidden, on(config, biases.inward)) + linear(
        hidden, inner, on(config, biases.outward)
    )
    part += linear(rank + 2 * size, inner) + linear(inner, rank, True)
    part += Part(others=inner * (size + 1) + inner * (kernel + conv_bias))
    return part + Part(others=(rank + 2 * size) * normed)


def _step_rank(config: Config) -> int:
    name = _either(config, "time_step_rank", "mamba_dt_rank")
    stated = config.stated.get(name, "auto")
    return -(-config.hidden // 16) if stated == "auto" else config.size(name)


def _either(config: Config, one: str, other: str) -> str:
    return one if config.states(one) else other


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Sizes of a Mamba 2 mixer."""

    inner: int
    groups: int
    size: int
    heads: int
    kernel: int


def mamba2(config: Config, of: Mamba2, biases: Biases, norm: bool = True) -> Part:
    """Mamba 2 (arXiv 2405.21060): one projection for gate, inputs, B, C and step."""
    channels = of.inner + 2 * of.groups * of.size
    conv_bias = on(config, biases.convolution)
    part = linear(of.inner + channels + of.heads, config.hidden, on(config, biases.inward))
    part += linear(config.hidden, of.inner, on(config, biases.outward))
    vectors = 3 * of.heads + channels * (of.kernel + conv_bias) + of.inner * norm
    return part + Part(others=vectors)


def delta_net(config: Config) -> Part:
    """Gated delta net (arXiv 2412.06464): q, k, v, a gate, and two numbers per value head."""
    keys = config.size("linear_num_key_heads") * config.size("linear_key_head_dim")
    heads, dim = config.size("linear_num_value_heads"), config.size("linear_value_head_dim")
    channels, kernel = 2 * keys + heads * dim, config.size("linear_conv_kernel_dim")
    part = linear(channels + heads * dim + 2 * heads, config.hidden)
    part += linear(config.hidden, heads * dim)
    return part + Part(others=2 * heads + channels * kernel + dim)


def short_convolution(config: Config) -> Part:
    """LFM2's gated short convolution: a projection to three, the convolution, one back."""
    hidden, bias = config.hidden, on(config, "conv_bias")
    part = linear(3 * hidden, hidden, bias) + linear(hidden, hidden, bias)
    return part + Part(others=hidden * (config.size("conv_L_cache") + bias))


def lightning(config: Config) -> Part:
    """MiniMax's lightning attention: q, k, v, a gate and a norm, all as wide as the queries."""
    inner = config.heads * head_dim(config)
    return linear(4 * inner, config.hidden) + linear(config.hidden, inner) + Part(others=inner)
