"""States of layers by ``model_type``: which weights their recurrent parts have."""

from __future__ import annotations

from collections.abc import Callable

from kvhouse.spec.config import Config
from kvhouse.spec.weight_mixers import (
    delta_net,
    lightning,
    mamba1,
    mamba2,
    short_convolution,
)
from kvhouse.spec.weights import Part, on


def _mamba2(config: Config, norm: bool = True) -> Part:
    """Mamba 2 as Bamba and its kin state its sizes."""
    heads, size = config.size("mamba_n_heads"), config.size("mamba_d_state")
    inner = config.maybe("mamba_d_ssm") or int(config.number("mamba_expand") * config.hidden)
    groups, kernel = config.size("mamba_n_groups"), config.size("mamba_d_conv")
    return mamba2(config, inner, groups, size, heads, kernel, norm)


def _falcon_h1(config: Config) -> Part:
    return _mamba2(config, on(config, "mamba_rms_norm"))


#: By ``model_type``, the part of a layer that keeps a state.
STATES: dict[str, Callable[[Config], Part]] = {
    **dict.fromkeys(["bamba", "granitemoehybrid"], _mamba2),
    **dict.fromkeys(["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "lara_mini"], delta_net),
    **dict.fromkeys(["lfm2", "lfm2_moe", "lfm3"], short_convolution),
    "falcon_h1": _falcon_h1,
    "jamba": lambda config: mamba1(config, normed=True),
    "minimax": lightning,
}
