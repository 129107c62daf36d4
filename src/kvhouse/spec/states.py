"""States of fixed size, from a config: SSMs, linear attention, short convolutions."""

from __future__ import annotations

from collections.abc import Callable

from kvhouse.errors import UnsupportedModel
from kvhouse.spec.attention import head_dim, kv_heads
from kvhouse.spec.config import Config
from kvhouse.spec.fields import show
from kvhouse.spec.layers import Convolution, State, Tensor

_Tensors = tuple[Tensor | Convolution, ...]
#: The recurrent state is kept in float32 whatever the model computes in.
_WIDE = "float32"
_STATE_DTYPES = ("float32", "bfloat16", "float16")


def state(config: Config, index: int, slides: bool = False) -> State:
    """What layer ``index`` keeps of a request whatever its length."""
    kind = config.model_type
    if kind.startswith("inkling"):
        return State(_inkling(config, slides))
    reader = _READERS.get(kind)
    if reader is None:
        raise UnsupportedModel(f"{config.where}: {kind!r} has no linear or recurrent layers")
    tensors = reader(config)
    if kind == "qwen4_exp_text":
        tensors += _ngram_memory(config, index)
    return State(tensors)


def _mamba1(config: Config) -> _Tensors:
    """Mamba (arXiv 2312.00752): a convolution and a state per inner channel."""
    inner = int(config.number(_one_of(config, "expand", "mamba_expand")) * config.hidden)
    kernel = config.either("conv_kernel", "mamba_d_conv")
    return Convolution(inner, kernel), Tensor(
        inner * config.either("state_size", "mamba_d_state"), _WIDE
    )


def _one_of(config: Config, first: str, second: str) -> str:
    return first if config.states(first) else second


def _mamba2(config: Config) -> _Tensors:
    """Mamba 2 (arXiv 2405.21060): the convolution also runs over B and C of each group."""
    kind = config.model_type
    if kind == "nemotron_h":
        inner = config.size("mamba_num_heads") * config.size("mamba_head_dim")
        groups = config.either("mamba_n_groups", "n_groups")
        size, kernel = config.size("ssm_state_size"), config.either("mamba_d_conv", "conv_kernel")
    elif kind == "mamba2":
        inner = int(config.number("expand") * config.hidden)
        groups = config.size("n_groups")
        size, kernel = config.size("state_size"), config.size("conv_kernel")
    else:
        own = config.maybe("mamba_d_ssm")
        inner = own or int(config.number("mamba_expand") * config.hidden)
        groups = config.size("mamba_ngroups" if kind == "zamba2" else "mamba_n_groups")
        size, kernel = config.size("mamba_d_state"), config.size("mamba_d_conv")
    return Convolution(inner + 2 * groups * size, kernel), Tensor(inner * size, _dtype(config))


def _delta_net(config: Config) -> _Tensors:
    """Gated delta net (arXiv 2412.06464): one matrix of key by value per value head."""
    key_heads = config.maybe("linear_num_key_heads") or config.heads
    value_heads = config.maybe("linear_num_value_heads") or config.heads
    key_dim = config.maybe("linear_key_head_dim") or max(1, config.hidden * 3 // (4 * key_heads))
    value_dim = config.maybe("linear_value_head_dim") or 2 * key_dim
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    kernel = config.size("linear_conv_kernel_dim")
    return Convolution(channels, kernel), Tensor(value_heads * key_dim * value_dim, _dtype(config))


def _dtype(config: Config) -> str:
    """The dtype of a recurrent state: float32, unless the publisher says that less will do."""
    for name in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        stated = config.text(name)
        if stated in _STATE_DTYPES:
            return stated
        if stated not in (None, "auto"):
            raise config.error(name, f"is {show(stated)}, not one of {', '.join(_STATE_DTYPES)}")
    return _WIDE


def _delta_attention(config: Config) -> _Tensors:
    """Kimi delta attention (arXiv 2510.26692): three convolutions and a square per head."""
    if config.model_type == "bailing_hybrid":
        heads = config.maybe("linear_num_heads") or config.heads
        dim = config.either("linear_head_dim", "head_dim")
        kernel = config.either("linear_conv_kernel_dim", "short_conv_kernel_size")
    else:
        inner = config.inner("linear_attn_config")
        own = [
            inner.maybe(name) if inner else None
            for name in ("num_heads", "head_dim", "short_conv_kernel_size")
        ]
        heads = own[0] or config.size("linear_num_heads")
        dim = own[1] or config.size("linear_head_dim")
        kernel = own[2] or config.size("linear_conv_kernel_dim")
    return Convolution(3 * heads * dim, kernel), Tensor(heads * dim * dim, _WIDE)


def _lightning(config: Config) -> _Tensors:
    """Lightning attention (arXiv 2501.08313): a square per head, in the model's dtype."""
    return (Tensor(config.heads * head_dim(config) ** 2),)


def _griffin(config: Config) -> _Tensors:
    """RG-LRU (arXiv 2402.19427): a convolution and one number per channel."""
    width = config.maybe("lru_width") or config.hidden
    columns = config.size("conv1d_width") - 1
    return Tensor(config.hidden * columns), Tensor(width, _WIDE)


def _short_convolution(config: Config) -> _Tensors:
    """LFM2's gated short convolution."""
    return (Convolution(config.hidden, config.size("conv_L_cache")),)


def _compressed_convolution(config: Config) -> _Tensors:
    """Zaya's convolutions over queries and keys, beside the KV."""
    kv, dim = kv_heads(config), head_dim(config)
    columns = config.size("cca_time0") + config.size("cca_time1") - 2
    return Tensor((config.heads + kv) * dim * columns), Tensor(kv * dim // 2)


def _inkling(config: Config, slides: bool) -> _Tensors:
    """Inkling's convolutions over keys, values and the stream, beside the KV."""
    kv, dim = kv_heads(config), head_dim(config)
    if slides:
        kv, dim = config.size("swa_num_key_value_heads"), config.size("swa_head_dim")
    channels = 2 * kv * dim + 2 * config.hidden
    return (Convolution(channels, config.size("conv_kernel_size"), _WIDE),)


def _ngram_memory(config: Config, index: int) -> _Tensors:
    """Per-layer n-gram embeddings: the inputs of their convolution and the last token ids."""
    if index + 1 not in (config.integers("ple_layer_ids") or ()):
        return ()
    grams, columns = config.size("ngram_size"), config.size("ple_conv_kernel_size") - 1
    streams = config.size("hc_count") * config.hidden
    return Tensor(streams * columns * grams), Tensor(grams - 1, "int64")


_READERS: dict[str, Callable[[Config], _Tensors]] = {
    **dict.fromkeys(["mamba", "falcon_mamba", "jamba", "zamba"], _mamba1),
    **dict.fromkeys(["mamba2", "bamba", "falcon_h1", "granitemoehybrid"], _mamba2),
    **dict.fromkeys(["nemotron_h", "zamba2"], _mamba2),
    **dict.fromkeys(["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"], _delta_net),
    **dict.fromkeys(["qwen4_exp_text", "olmo_hybrid", "lara_mini"], _delta_net),
    **dict.fromkeys(["kimi_linear", "bailing_hybrid"], _delta_attention),
    **dict.fromkeys(["lfm2", "lfm2_moe", "lfm3"], _short_convolution),
    "minimax": _lightning,
    "recurrent_gemma": _griffin,
    "zaya": _compressed_convolution,
}
