"""Layers that predict several tokens at once (multi-token prediction), from a config.

A model runs without them, and transformers does not load them. An engine that speculates with them
keeps their keys and values like any other layer's (DeepSeek-V3, arXiv 2412.19437).
"""

from __future__ import annotations

from kvhouse.spec.config import MOST_LAYERS, Config
from kvhouse.spec.layers import Layer
from kvhouse.spec.pattern_rules import CSA, FULL, HCA, INDEXED, SLIDING
from kvhouse.spec.patterns import layer_types
from kvhouse.spec.plain_models import one_layer
from kvhouse.spec.rare_models import READERS

#: Names under which configs count these layers; the first that is stated counts.
_COUNTS = (
    *("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"),
    *("num_mtp_modules", "mtp_num_layers"),
)


def mtp_layers(config: Config) -> tuple[Layer, ...]:
    """What the prediction layers keep; empty for a model without them.

    They attend as the model's own layers do: with an indexer where those have one, over a window
    in MiMo-V2, and over everything in models of several kinds.
    """
    count = _count(config)
    if not count or config.model_type in READERS:
        return ()
    own = layer_types(config)
    return tuple(one_layer(config, len(own) - 1, kind) for kind in _kinds(config, count, own))


def _count(config: Config) -> int:
    for name in _COUNTS:
        if config.stated.get(name) is not None:
            count = config.optional_integer(name, MOST_LAYERS, 0) or 0
            break
    else:
        return 0
    if name == "num_mtp_modules":  # each may be of several layers
        count *= config.maybe("mtp_transformer_layers") or 1
    if config.model_type == "nemotron_h":
        types = config.text("mtp_hybrid_override_pattern") or "".join(
            "*" if kind == "attention" else "E" for kind in config.texts("mtp_layers_block_type")
        )
        count *= types.count("*") if types else 1
    return min(count, MOST_LAYERS)


def _kinds(config: Config, count: int, own: list[str]) -> list[str]:
    if config.model_type == "deepseek_v4":
        ratios = (config.integers("compress_ratios") or [])[config.layers :]
        known = {0: SLIDING, 4: CSA, 128: HCA}
        return ([known.get(ratio, SLIDING) for ratio in ratios] + [SLIDING] * count)[:count]
    if config.model_type == "mimo_v2_flash":
        return [SLIDING] * count
    return [INDEXED if INDEXED in own else FULL] * count
