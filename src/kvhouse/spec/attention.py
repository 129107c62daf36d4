"""Keys and values of one layer: heads, dimensions, latents and indexers, from a config."""

from __future__ import annotations

from kvhouse.spec.config import MOST_LAYERS, Config
from kvhouse.spec.foreign import LATENT
from kvhouse.spec.layers import (
    ChunkedAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    SlidingAttention,
)


def attention(
    config: Config, index: int, window: int | None = None, chunk: int | None = None
) -> Layer:
    """What layer ``index`` keeps for attention; ``window`` or ``chunk`` where it forgets."""
    if config.model_type in LATENT:
        return _latent(config, index, window)
    slides = window is not None
    sizes = (_query_heads(config, slides), *_sizes(config, index, slides))
    if window is not None:
        return SlidingAttention(*sizes, window)
    if chunk is not None:
        return ChunkedAttention(*sizes, chunk)
    return FullAttention(*sizes)


def _sizes(config: Config, index: int, slides: bool) -> tuple[int, int, int]:
    """KV heads, and the dimensions of a key and of a value."""
    kind = config.model_type
    kv, dim = kv_heads(config), head_dim(config)
    if kind == "mimo_v2_flash":
        return _mimo_v2(config, slides, kv, dim)
    own = _step3p5(config) if slides else None
    if own is not None:
        kv, dim = own.maybe("num_attention_groups") or kv, own.maybe("head_dim") or dim
    if kind.startswith("inkling") and slides:
        kv, dim = config.size("swa_num_key_value_heads"), config.size("swa_head_dim")
    if kind.startswith("gemma4"):
        kv, dim = _gemma4(config, index, slides, kv)
    return kv, dim, dim


def _query_heads(config: Config, slides: bool) -> int:
    own = _step3p5(config) if slides else None
    stated = own.maybe("num_attention_heads") if own else None
    if slides and config.model_type == "step3p5":
        return config.maybe("num_sliding_attention_heads") or stated or config.heads
    return config.heads


def _step3p5(config: Config) -> Config | None:
    """Step 3.5: what its sliding layers have of their own; None where they have nothing."""
    return config.inner("attention_other_setting") if config.model_type == "step3p5" else None


def _mimo_v2(config: Config, slides: bool, kv: int, dim: int) -> tuple[int, int, int]:
    """MiMo-V2: values are narrower than keys, and sliding layers have twice the KV heads.

    The publisher's files state the sliding layers' sizes; those that transformers saves do not.
    """
    value = config.size("v_head_dim")
    if not slides:
        return kv, dim, value
    return (
        config.maybe("swa_num_key_value_heads") or 2 * kv,
        config.maybe("swa_head_dim") or dim,
        config.maybe("swa_v_head_dim") or value,
    )


def kv_heads(config: Config) -> int:
    """KV heads of a layer that does not differ from the others.

    Falcon's newer form is the exception to keep in mind: transformers caches its keys after
    repeating them for every query head, while the model has ``num_kv_heads`` of them.
    """
    kind, heads = config.model_type, config.heads
    if kind == "falcon":
        if config.flag("new_decoder_architecture", False):
            return config.maybe("num_kv_heads") or heads
        return 1 if config.flag("multi_query", True) else heads
    if kind == "gpt_bigcode":
        return 1 if config.flag("multi_query", True) else heads
    if kind == "dbrx":
        inner = config.inner("attn_config")
        return (inner.maybe("kv_n_heads") if inner else None) or 1
    if not config.declares("num_key_value_heads"):
        return heads  # the class is MHA, whatever a file says
    return config.maybe("num_key_value_heads") or heads


def head_dim(config: Config) -> int:
    """Elements of one head's key."""
    if config.model_type in ("zamba", "zamba2"):
        stated = config.maybe("head_dim") or config.maybe("attention_head_dim")
        return stated or 2 * config.hidden // config.heads
    listens = config.declares("head_dim") or not config.entry.get("fixed_head_dim")
    stated = config.maybe("head_dim") if listens else None
    if stated is not None:
        return stated
    hidden, heads = config.hidden, config.heads
    if hidden < heads:
        name, heads_name = map(config.stated_name, ("hidden_size", "num_attention_heads"))
        raise config.error(name, f"is {hidden}, less than {heads_name!r} = {heads}")
    return hidden // heads


def _gemma4(config: Config, index: int, slides: bool, kv: int) -> tuple[int, int]:
    """Gemma 4: full layers have a head dimension, and at times KV heads, of their own."""
    dim = config.size("head_dim")
    if config.states("per_layer_config"):
        own = layer_config(config, index)
        if own is None:
            return kv, dim
        return own.maybe("num_key_value_heads") or kv, own.maybe("head_dim") or dim
    if slides:
        return kv, dim
    same = config.flag("attention_k_eq_v", False)
    own_heads = config.maybe("num_global_key_value_heads") if same else None
    return own_heads or kv, config.maybe("global_head_dim") or 512


def layer_config(config: Config, index: int) -> Config | None:
    """What ``per_layer_config`` says of one layer; None where it says nothing.

    Transformers writes the layers' numbers with zeros in front, all equally long.
    """
    inner = config.inner("per_layer_config")
    if inner is None:
        return None
    names = (str(index).zfill(digits) for digits in range(1, len(str(MOST_LAYERS)) + 1))
    return next((inner.inner(name) for name in names if inner.states(name)), None)


def _latent(config: Config, index: int, window: int | None) -> LatentAttention:
    rank, rope = config.size("kv_lora_rank"), config.size("qk_rope_head_dim")
    if config.model_type == "dots3_note_text" and window is not None:
        own = layer_config(config, index)
        own_rank = own.maybe("kv_lora_rank") if own else None
        own_rope = own.maybe("qk_rope_head_dim") if own else None
        rank = own_rank or config.size("swa_kv_lora_rank")
        rope = own_rope or config.maybe("swa_qk_rope_head_dim") or _rest_of_head(config)
    plain, value = config.maybe("qk_nope_head_dim"), config.maybe("v_head_dim")
    return LatentAttention(
        config.heads,
        rank,
        rope,
        window,
        selected=config.maybe("index_topk"),
        unfolded=plain + rope + value if plain and value else None,
    )


def _rest_of_head(config: Config) -> int:
    """What the part without positions leaves of a sliding layer's head."""
    head, plain = config.size("swa_head_dim"), config.size("swa_qk_nope_head_dim")
    if plain >= head:
        raise config.error("swa_qk_nope_head_dim", f"is {plain}, not less than the head's {head}")
    return head - plain


def indexer(config: Config, index: int) -> tuple[Layer, ...]:
    """The indexer of a sparse layer; empty where it uses an earlier layer's."""
    kind = config.model_type
    if kind == "qwen4_exp_text":
        keys = config.size("indexer_kv_heads") * config.size("indexer_head_dim")
        return (Indexer(keys, positions=3),)
    if kind == "minimax_m3_vl_text":
        inner = config.inner("sparse_attention_config")
        own = inner.maybe("sparse_index_dim") if inner else None
        return (Indexer(own or config.size("index_head_dim")),)
    if _shares_indexer(config, index):
        return ()
    dtype = "float32" if kind == "dots3_note_text" else None
    return (Indexer(config.size("index_head_dim"), dtype),)


def _shares_indexer(config: Config, index: int) -> bool:
    kind = config.model_type
    modes = _indexer_modes(config) if kind in ("glm_moe_dsa", "hy_v4") else []
    if modes:
        return modes[index] == "shared"
    if kind == "hy_v4":
        return index > 0 and (index - 1) % 4 != 0
    if kind != "glm_moe_dsa":
        return False
    offset = config.maybe("index_skip_topk_offset", least=0)
    offset = 2 if offset is None else offset
    return max(index - offset + 1, 0) % (config.maybe("index_topk_freq") or 1) != 0


def _indexer_modes(config: Config) -> list[str]:
    """For each layer whether its indexer is full or shared; empty where no field lists it."""
    name = "indexer_types"
    modes = config.texts(name)
    if not modes and config.model_type == "glm_moe_dsa":
        name = "index_topk_pattern"
        letters = config.stated.get(name)
        modes = list(letters) if isinstance(letters, str) else config.texts(name)
    modes = [{"F": "full", "S": "shared"}.get(mode, mode) for mode in modes]
    if modes and (len(modes) < config.layers or set(modes) - {"full", "shared"}):
        raise config.error(name, f"does not say full or shared for each of {config.layers} layers")
    return modes
