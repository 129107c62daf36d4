"""The pattern of layer kinds of each class whose configs may leave the list out.

The names are those of ``layer_types`` in Hugging Face configs, and the patterns those of the config
classes of transformers 5, which lay down what a file without the list means.
"""

from __future__ import annotations

from collections.abc import Callable

from kvhouse.spec.config import MOST_LAYERS, MOST_SIZE, Config
from kvhouse.spec.fields import show

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
LINEAR, CONV, INDEXED = "linear_attention", "conv", "indexed_attention"
HYBRID, HYBRID_SLIDING = "hybrid", "hybrid_sliding"
SPARSE, CSA = "minimax_m3_sparse", "compressed_sparse_attention"
HCA, MOE, MLP = "heavily_compressed_attention", "moe", "mlp"

#: The kind of layer ``i``.
Rule = Callable[[int], str]


def window(config: Config) -> int | None:
    """The window of the layers that slide, in tokens; None where none is set."""
    kind = config.model_type
    if kind in ("qwen2", "qwen3", "qwen3_moe") and not config.flag("use_sliding_window", False):
        return None
    if kind == "modernbert-decoder":
        return max(1, config.size("local_attention") // 2)
    if kind == "mimo_v2_flash" and config.maybe("sliding_window_size") is not None:
        return config.size("sliding_window_size") + 1
    tokens = config.optional_integer("sliding_window", MOST_SIZE * 64)
    if tokens is None:
        return None
    both_ways = config.stated.get("use_bidirectional_attention")
    if (kind == "gemma3_text" and both_ways) or (kind.startswith("gemma4") and both_ways == "all"):
        return tokens // 2 + 1
    return tokens


def every(period: int, kind: str = FULL, other: str = SLIDING, at: int = 1) -> Rule:
    """``kind`` where ``(i + at) % period == 0``, else ``other``."""
    return lambda index: kind if (index + at) % period == 0 else other


def always(kind: str) -> Rule:
    """The same kind everywhere."""
    return lambda _: kind


def where(condition: Callable[[int], bool], kind: str, other: str) -> Rule:
    """``kind`` where the condition holds, else ``other``."""
    return lambda index: kind if condition(index) else other


def _full_at_the_end(config: Config, period: int, also: Callable[[int], bool]) -> Rule:
    last = config.layers - 1
    return where(lambda i: (i + 1) % period == 0 or i == last or also(i), FULL, SLIDING)


def _period(config: Config, name: str, default: int | None = None) -> int:
    value = config.maybe(name)
    if value is None and default is None:
        raise config.error(name, "is missing")
    return value or default or 1


def _from_switch(config: Config) -> Rule:
    """Qwen2 and Qwen3: layers from ``max_window_layers`` on slide, if a switch is on."""
    first = config.maybe("max_window_layers", least=0) or 0
    slides = window(config) is not None
    return where(lambda i: slides and i >= first, SLIDING, FULL)


def _dots1(config: Config) -> Rule:
    first, slides = config.size("max_window_layers", least=0), window(config) is not None
    return where(lambda i: slides and i >= first, SLIDING, FULL)


def _qwen2_moe(config: Config) -> Rule:
    slides = config.flag("use_sliding_window", False)
    below = config.maybe("max_window_layers", least=0) or 0
    return where(lambda i: slides and (i + 1) % 2 > 0 and i < below, SLIDING, FULL)


def _rope_layers(config: Config) -> list[int]:
    """For each layer whether it has rotary positions: 1 or 0."""
    given = config.integers("no_rope_layers")
    if not given:
        step = _period(config, "no_rope_layer_interval")
        return [int((i + 1) % step != 0) for i in range(config.layers)]
    if len(given) != config.layers:
        problem = f"names {len(given)} layers, but there are {config.layers}"
        raise config.error("no_rope_layers", problem)
    return given


def _llama4(config: Config) -> Rule:
    rope, chunked = _rope_layers(config), config.maybe("attention_chunk_size") is not None
    return where(lambda i: chunked and rope[i] != 0, CHUNKED, FULL)


def _smollm3(config: Config) -> Rule:
    slides = config.flag("use_sliding_window", False) and window(config) is not None
    rope = _rope_layers(config)
    return where(lambda i: slides and not rope[i], SLIDING, FULL)


def _cohere2_moe(config: Config) -> Rule:
    dense = config.maybe("first_k_dense_replace", least=0) or 0
    first = _period(config, "prefix_dense_sliding_window_pattern")
    rest = _period(config, "sliding_window_pattern")
    return lambda i: every(first)(i) if i < dense else every(rest)(i - dense)


def _deepseek_v4(config: Config) -> Rule:
    ratios = config.integers("compress_ratios")
    if not ratios:
        return lambda i: CSA if i >= 2 and i % 2 else HCA
    kinds = {0: SLIDING, 4: CSA, 128: HCA}
    if len(ratios) < config.layers or not kinds.keys() >= set(ratios):
        raise config.error("compress_ratios", f"is {show(ratios)}, not 0, 4 or 128 for each layer")
    return lambda i: kinds[ratios[i]]


def _dots3(config: Config) -> Rule:
    full = FULL if config.stated.get("use_dsa") is False else INDEXED
    slides = config.flag("use_sliding_window", True)
    return where(lambda i: slides and i >= 2 and i % 4 != 1, SLIDING, full)


def _mimo_v2(config: Config) -> Rule:
    given = config.integers("hybrid_layer_pattern")
    if given is None:
        return where(lambda i: i == 0 or (i + 1) % 6 == 0, FULL, SLIDING)
    if len(given) != config.layers or set(given) - {0, 1}:
        problem = f"is {show(given)}, not 0 or 1 for each of {config.layers} layers"
        raise config.error("hybrid_layer_pattern", problem)
    return where(lambda i: given[i] == 0, FULL, SLIDING)


def _exaone(config: Config) -> Rule:
    if window(config) is None:
        raise config.error("layer_types", "is missing, and without a window there is no pattern")
    return every(_period(config, "sliding_window_pattern"))


def _kimi(config: Config) -> Rule:
    inner = config.inner("linear_attn_config")
    full = inner.layer_numbers("full_attn_layers", config.layers, 1) if inner else None
    if full is None:
        return where(lambda i: i > 0 and i % 4 == 0, FULL, LINEAR)
    at = {number - 1 for number in full}  # the file counts from one
    return where(lambda i: i in at, FULL, LINEAR)


def _minimax_m3(config: Config) -> Rule:
    inner = config.inner("sparse_attention_config")
    sparse = inner.integers("sparse_attention_freq") if inner else None
    if sparse is not None and len(sparse) < config.layers:
        raise config.error("sparse_attention_config", "names fewer layers than there are")
    return where(lambda i: sparse is not None and sparse[i] != 0, SPARSE, FULL)


def nemotron(config: Config) -> list[str]:
    """Nemotron-H: a letter for each layer; without one, the four of the class."""
    pattern = config.text("hybrid_override_pattern")
    names = {"M": LINEAR, "E": MOE, "*": FULL, "-": MLP}
    if pattern is None:
        return [LINEAR, MOE, FULL, MLP]
    if not pattern or len(pattern) > MOST_LAYERS or set(pattern) - names.keys():
        problem = f"is {show(pattern)}, not a layer for each of M, E, * and -"
        raise config.error("hybrid_override_pattern", problem)
    return [names[letter] for letter in pattern]


def _jamba(config: Config) -> Rule:
    period = _period(config, "attn_layer_period")
    offset = config.maybe("attn_layer_offset", least=0) or 0
    return where(lambda i: i % period == offset, FULL, LINEAR)


def _zamba(config: Config) -> Rule:
    period = _period(config, "attn_layer_period")
    offset = config.maybe("attn_layer_offset", least=0) or 0
    return where(lambda i: i == 2 or (i > 2 and (i - 3) % period == offset), HYBRID, LINEAR)


def _recurrent_gemma(config: Config) -> Rule:
    blocks = config.texts("block_types")
    if not blocks or set(blocks) - {"recurrent", "attention"}:
        raise config.error("block_types", f"is {show(blocks)}, not recurrent or attention blocks")
    return where(lambda i: blocks[i % len(blocks)] == "recurrent", LINEAR, SLIDING)


def _listed(
    name: str, kind: str, other: str, absent: str | None = None
) -> Callable[[Config], Rule]:
    """``kind`` for the layers that a field lists by number; ``absent`` everywhere without it."""

    def rule(config: Config) -> Rule:
        at = config.layer_numbers(name, config.layers)
        if at is None:
            return always(absent or other)
        return where(lambda i: i in at, kind, other)

    return rule


def _inkling(config: Config) -> Rule:
    local = config.layer_numbers("local_layer_ids", config.layers)
    if local is None:
        return every(6, HYBRID, HYBRID_SLIDING)
    return where(lambda i: i in local, HYBRID_SLIDING, HYBRID)


def _olmo_hybrid(config: Config) -> Rule:
    few, last = config.layers < 4, config.layers - 1
    return where(lambda i: i % 4 == 3 or (few and i == last), FULL, LINEAR)


def _interval(kind: str) -> Callable[[Config], Rule]:
    """Qwen3-Next and its kin: every fourth layer attends, the others are linear."""
    return lambda c: every(_period(c, "full_attention_interval", 4), kind, LINEAR)


def _patterned(default: int | None = None) -> Callable[[Config], Rule]:
    return lambda c: every(_period(c, "sliding_window_pattern", default))


_ZAMBA2 = (6, 12, 18, 24, 30, 36, 42, 47, 51)

#: By ``model_type``, the pattern of a config without a list.
RULES: dict[str, Callable[[Config], Rule]] = {
    "afmoe": lambda c: every(_period(c, "global_attn_every_n_layers")),
    "axk2": lambda _: always(INDEXED),
    "bailing_hybrid": lambda c: every(_period(c, "layer_group_size"), FULL, LINEAR),
    "bamba": _listed("attn_layer_indices", FULL, LINEAR),
    "beam": lambda c: _full_at_the_end(c, 6, lambda _: False),
    "cohere2": _patterned(4),
    "cohere2_moe": _cohere2_moe,
    "cohere_compass_text": lambda _: always(FULL),
    "cwm": lambda _: every(4, at=0),
    "deepseek_v32": lambda _: always(INDEXED),
    "deepseek_v4": _deepseek_v4,
    "dory": lambda _: every(4),
    "dots1": _dots1,
    "dots3_note_text": _dots3,
    "exaone4": _exaone,
    "exaone_moe": _exaone,
    "falcon_h1": lambda _: always(HYBRID),
    "falcon_mamba": lambda _: always(LINEAR),
    "flint": lambda c: _full_at_the_end(c, MOST_SIZE, lambda i: i < 2 or i % 4 == 1),
    "gemma2": lambda _: every(2),
    "gemma3_text": _patterned(6),
    "gemma3n_text": lambda _: every(5),
    "gemma4_text": lambda c: _full_at_the_end(c, 6, lambda _: False),
    "gemma4_unified_text": lambda c: _full_at_the_end(c, 6, lambda _: False),
    "glm_moe_dsa": lambda _: always(INDEXED),
    "gpt_oss": lambda _: every(2),
    "granite_swa": lambda _: every(4, at=0),
    "granitemoe_swa": lambda _: every(4, at=0),
    "granitemoehybrid": lambda _: always(LINEAR),
    "hy_v4": lambda _: always(INDEXED),
    "inkling2_loop_text": lambda _: every(6, HYBRID, HYBRID_SLIDING),
    "inkling2_text": lambda _: every(6, HYBRID, HYBRID_SLIDING),
    "inkling_text": _inkling,
    "jamba": _jamba,
    "kimi_linear": _kimi,
    "kolibri1": lambda _: every(5),
    "laguna": lambda _: always(FULL),
    "lara_mini": lambda _: lambda i: (LINEAR, SLIDING, LINEAR, FULL, SLIDING)[i % 5],
    "lfm2": _listed("full_attn_idxs", FULL, CONV, absent=FULL),
    "lfm3": lambda _: lambda i: FULL if i % 4 == 2 else SLIDING if i and i % 4 == 0 else CONV,
    "llama4_text": _llama4,
    "mamba": lambda _: always(LINEAR),
    "mamba2": lambda _: always(LINEAR),
    "mellum": lambda _: always(FULL),
    "mimo_v2_flash": _mimo_v2,
    "minimax": lambda _: every(2, FULL, LINEAR, at=0),
    "minimax_m3_vl_text": _minimax_m3,
    "modernbert-decoder": lambda c: every(_period(c, "global_attn_every_n_layers", 3), at=0),
    "olmo3": lambda _: every(4),
    "olmo_hybrid": _olmo_hybrid,
    "qwen2": _from_switch,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _from_switch,
    "qwen3_5_moe_text": _interval(FULL),
    "qwen3_5_text": _interval(FULL),
    "qwen3_next": _interval(FULL),
    "qwen4_exp_text": _interval(INDEXED),
    "recurrent_gemma": _recurrent_gemma,
    "smollm3": _smollm3,
    "step3p5": lambda _: always(FULL),
    "vaultgemma": lambda _: every(2),
    "zamba": _zamba,
    "zamba2": lambda _: where(lambda i: i in _ZAMBA2, HYBRID, LINEAR),
    "zaya": lambda _: always(HYBRID),
}
