"""Models whose cache is not one entry per layer of ``layer_types``."""

from __future__ import annotations

from collections.abc import Callable

from kvhouse.spec.attention import attention, head_dim, kv_heads
from kvhouse.spec.config import Config
from kvhouse.spec.fields import show
from kvhouse.spec.layers import (
    Combined,
    CrossAttention,
    FullAttention,
    Layer,
    State,
    Tensor,
    WithoutKV,
)
from kvhouse.spec.patterns import layer_types
from kvhouse.spec.plain_models import one_layer, plain_layers
from kvhouse.spec.rare_layers import HashBuckets, HiddenStates

_MOST_PASSES = 2**10
_MOST_SLOTS = 2**16


def _uncached(config: Config) -> list[Layer]:
    """GPT-1's class has no cache: every step computes the whole text anew."""
    return [WithoutKV()] * config.layers


def _rwkv(config: Config) -> list[Layer]:
    """RWKV 4 (arXiv 2305.13048): two vectors of the last token and three sums."""
    state = State((Tensor(2 * config.hidden), Tensor(3 * config.hidden, "float32")))
    return [state] * config.layers


def _xlstm(config: Config) -> list[Layer]:
    """The mLSTM (arXiv 2405.04517): per head a matrix, a normaliser and a maximum."""
    heads = config.heads
    key = _up(config.hidden * config.number("qk_dim_factor")) // heads
    value = _up(config.hidden * config.number("v_dim_factor")) // heads
    return [State((Tensor(heads * (key * value + key + 1)),))] * config.layers


def _up(width: float) -> int:
    """The next multiple of 64."""
    return -(-int(width) // 64) * 64


def _xlnet(config: Config) -> list[Layer]:
    return [HiddenStates(config.hidden, config.maybe("mem_len", least=0) or None)] * config.layers


def _reformer(config: Config) -> list[Layer]:
    kinds = config.texts("attn_layers")
    hashes, chunk = config.heads * config.size("num_hashes"), config.size("lsh_attn_chunk_length")
    states = HiddenStates(config.hidden)
    hashed = Combined((states, HashBuckets(hashes, chunk)))
    if not kinds or set(kinds) - {"lsh", "local"}:
        raise config.error("attn_layers", f"is {show(kinds)}, not lsh or local layers")
    return [hashed if kind == "lsh" else states for kind in kinds]


def _cpmant(config: Config) -> list[Layer]:
    """CPM-Ant puts a learned prompt before every text."""
    plain = FullAttention(config.heads, config.heads, head_dim(config), head_dim(config))
    prompt = 2 * config.heads * head_dim(config) * config.size("prompt_length")
    return [Combined((plain, State((Tensor(prompt),))))] * config.layers


def _hrm(config: Config) -> list[Layer]:
    """A hierarchy of loops: a file as first published counts the layers of one stack."""
    slots = config.layers
    if config.maybe("num_layers_per_stack") is None:
        outer, inner = _passes(config, "H_cycles"), _passes(config, "L_cycles")
        slots *= outer * (inner + 1)
    return _repeated(one_layer(config, 0, layer_types(config)[0]), slots, config)


def _longcat(config: Config) -> list[Layer]:
    """Two attentions in every layer."""
    return [one_layer(config, 0, layer_types(config)[0])] * (2 * config.layers)


def _passes(config: Config, name: str) -> int:
    value = config.size(name)
    if value > _MOST_PASSES:
        raise config.error(name, f"is {value}, more passes than any model makes")
    return value


def _repeated(layer: Layer, times: int, config: Config) -> list[Layer]:
    if times > _MOST_SLOTS:
        raise config.error("num_hidden_layers", f"leads to {times} layers, which is absurd")
    return [layer] * times


def _dory(config: Config) -> list[Layer]:
    """The middle layers run several times, with KV for each pass or for the last only."""
    kinds = config.texts("layer_types")
    # A saved file counts attention and MLP as layers of their own.
    half = 2 if "mlp" in kinds else 1
    layers = config.layers // half
    lead = (config.maybe("n_input_layers", least=0) or 0) // half
    tail = (config.maybe("n_output_layers", least=0) or 0) // half
    kinds = kinds[::half] or layer_types(config)
    if len(kinds) != layers or lead + tail > layers:
        raise config.error("layer_types", f"names {len(kinds)} layers, but there are {layers}")
    each = config.text("recurrent_kv_cache_mode") in (None, "per_loop")
    passes = _passes(config, "n_recurrent_loops") if each else 1
    middle = range(lead, layers - tail)
    if passes * layers > _MOST_SLOTS:
        raise config.error("n_recurrent_loops", f"is {passes}, more passes than any model makes")
    order = [*range(lead), *list(middle) * passes, *range(layers - tail, layers)]
    return [one_layer(config, index, kinds[index]) for index in order]


def _inkling_loop(config: Config) -> list[Layer]:
    """A range of layers runs several times, with KV for each pass."""
    layers = plain_layers(config)
    own = config.inner("loop_config")

    def field(short: str, long: str) -> int:
        stated = own.maybe(short, least=0) if own else None
        return config.size(long, least=0) if stated is None else stated

    start, end = (
        field("core_start", "loop_layer_index_start"),
        field("core_end", "loop_layer_index_end"),
    )
    passes = field("num_passes", "loop_num_passes")
    if passes > _MOST_PASSES:
        raise config.error("loop_num_passes", f"is {passes}, more passes than any model makes")
    return layers + layers[start : min(end, len(layers))] * (passes - 1)


def _mllama(config: Config) -> list[Layer]:
    """Some layers attend to images only."""
    across = config.layer_numbers("cross_attention_layers", config.layers)
    at = {3, 8, 13, 18, 23, 28, 33, 38} if across is None else set(across)
    image = CrossAttention(config.heads, kv_heads(config), head_dim(config), head_dim(config))
    return [image if i in at else attention(config, i) for i in range(config.layers)]


def _nemotron_nas(config: Config) -> list[Layer]:
    """Blocks found by search: attention with KV heads of its own, a linear map, or nothing."""
    blocks, heads, dim = config.inners("block_configs"), config.heads, head_dim(config)
    if len(blocks) != config.layers:
        problem = f"names {len(blocks)} layers, but there are {config.layers}"
        raise config.error("block_configs", problem)
    found: list[Layer] = []
    for block in blocks:
        own = block.inner("attention")
        if own is None:
            raise block.error("attention", "is missing")
        if own.flag("no_op", False) or own.flag("replace_with_linear", False):
            found.append(WithoutKV())
            continue
        group = own.size("n_heads_in_group")
        if heads % group:
            raise own.error("n_heads_in_group", f"is {group}, which does not divide {heads}")
        found.append(FullAttention(heads, heads // group, dim, dim))
    return found


#: By ``model_type``, how the layers are read.
READERS: dict[str, Callable[[Config], list[Layer]]] = {
    "cpmant": _cpmant,
    "dory": _dory,
    "hrm_text": _hrm,
    "inkling2_loop_text": _inkling_loop,
    "longcat_flash": _longcat,
    "mllama_text_model": _mllama,
    "nemotron-nas": _nemotron_nas,
    "openai-gpt": _uncached,
    "reformer": _reformer,
    "rwkv": _rwkv,
    "xlnet": _xlnet,
    "xlstm": _xlstm,
}
