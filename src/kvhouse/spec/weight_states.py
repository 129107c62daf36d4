"""Parts of layers that keep a state of fixed size, by ``model_type``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvhouse.spec.config import Config
from kvhouse.spec.weight_mixers import (
    BIASES,
    MAMBA_BIASES,
    Biases,
    Mamba2,
    delta_net,
    lightning,
    mamba1,
    mamba2,
    short_convolution,
)
from kvhouse.spec.weights import Part, linear, on


def _bamba(config: Config, norm: bool = True, biases: Biases = MAMBA_BIASES) -> Part:
    """Mamba 2 as Bamba and its kin state its sizes."""
    inner = config.maybe("mamba_d_ssm") or int(config.number("mamba_expand") * config.hidden)
    sizes = Mamba2(
        inner,
        groups=config.size("mamba_n_groups"),
        size=config.size("mamba_d_state"),
        heads=config.size("mamba_n_heads"),
        kernel=config.size("mamba_d_conv"),
    )
    return mamba2(config, sizes, biases, norm)


def _falcon_h1(config: Config) -> Part:
    biases = replace(MAMBA_BIASES, outward="projectors_bias")
    return _bamba(config, on(config, "mamba_rms_norm"), biases)


def _mamba2(config: Config) -> Part:
    sizes = Mamba2(
        int(config.number("expand") * config.hidden),
        groups=config.size("n_groups"),
        size=config.size("state_size"),
        heads=config.size("num_heads"),
        kernel=config.size("conv_kernel"),
    )
    return mamba2(config, sizes, BIASES)


def nemotron_mamba(config: Config) -> Part:
    """Nemotron-H's Mamba 2."""
    heads = config.size("mamba_num_heads")
    sizes = Mamba2(
        heads * config.size("mamba_head_dim"),
        groups=config.either("mamba_n_groups", "n_groups"),
        size=config.size("ssm_state_size"),
        heads=heads,
        kernel=config.either("mamba_d_conv", "conv_kernel"),
    )
    return mamba2(config, sizes, BIASES)


def _kimi(config: Config) -> Part:
    """Kimi delta attention (arXiv 2510.26692): gates of low rank, a decay per channel."""
    own = config.inner("linear_attn_config")
    heads = (own.maybe("num_heads") if own else None) or config.size("linear_num_heads")
    dim = (own.maybe("head_dim") if own else None) or config.size("linear_head_dim")
    kernel = own.maybe("short_conv_kernel_size") if own else None
    inner, hidden = heads * dim, config.hidden
    low = linear(dim, hidden) + linear(inner, dim)
    full = own.flag("use_full_rank_gate", False) if own else False
    gates = low + (linear(inner, hidden) if full else low) + linear(heads, hidden)
    return _delta(config, heads, dim, kernel or config.size("linear_conv_kernel_dim")) + gates


def _bailing(config: Config) -> Part:
    """Ling's form of it, with gates of full rank."""
    heads = config.maybe("linear_num_heads") or config.heads
    dim = config.either("linear_head_dim", "head_dim")
    kernel = config.either("linear_conv_kernel_dim", "short_conv_kernel_size")
    return _delta(config, heads, dim, kernel) + linear(2 * heads * dim + heads, config.hidden)


def _delta(config: Config, heads: int, dim: int, kernel: int) -> Part:
    """Projections, convolutions, decays and the norm of delta attention."""
    inner = heads * dim
    part = linear(3 * inner, config.hidden) + linear(config.hidden, inner)
    return part + Part(others=3 * inner * kernel + inner + heads + dim)


def _griffin(config: Config) -> Part:
    """RG-LRU (arXiv 2402.19427): two branches, a convolution, gates of one block per head."""
    hidden, width = config.hidden, config.maybe("lru_width") or config.hidden
    block = width // config.heads
    part = linear(2 * width, hidden, True) + linear(hidden, width, True)
    part += linear(config.heads * block, block, True).times(2)
    return part + Part(others=width * (config.size("conv1d_width") + 2))


#: By ``model_type``, the part of a layer that keeps a state.
STATES: dict[str, Callable[[Config], Part]] = {
    **dict.fromkeys(["bamba", "granitemoehybrid"], _bamba),
    **dict.fromkeys(["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "lara_mini"], delta_net),
    **dict.fromkeys(["olmo_hybrid", "qwen4_exp_text"], delta_net),
    **dict.fromkeys(["lfm2", "lfm2_moe", "lfm3"], short_convolution),
    **dict.fromkeys(["mamba", "falcon_mamba"], lambda config: mamba1(config, BIASES)),
    "bailing_hybrid": _bailing,
    "falcon_h1": _falcon_h1,
    "jamba": lambda config: mamba1(config, MAMBA_BIASES, normed=True),
    "kimi_linear": _kimi,
    "mamba2": _mamba2,
    "minimax": lightning,
    "recurrent_gemma": _griffin,
}
