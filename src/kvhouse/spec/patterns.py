"""Which kind each layer is: the list in the config, or the pattern of its class."""

from __future__ import annotations

from kvhouse.errors import UnsupportedModel
from kvhouse.spec.config import MOST_LAYERS, Config
from kvhouse.spec.fields import show
from kvhouse.spec.pattern_rules import (
    CHUNKED,
    CONV,
    CSA,
    FULL,
    HCA,
    HYBRID,
    HYBRID_SLIDING,
    INDEXED,
    LINEAR,
    MLP,
    MOE,
    RULES,
    SLIDING,
    SPARSE,
    Rule,
    always,
    nemotron,
    window,
)

_KINDS = frozenset(
    [
        *(FULL, SLIDING, CHUNKED, LINEAR, CONV, INDEXED),
        *(HYBRID, HYBRID_SLIDING, SPARSE, CSA, HCA, MOE, MLP),
    ]
)
# Names that older files use.
_OLD = {
    "attention": FULL,
    "mamba": LINEAR,
    "deepseek_sparse_attention": INDEXED,
    "qwen_sparse_attention": INDEXED,
}
# Classes that compute the list themselves and read none.
_COMPUTED = {"bamba", "falcon_h1", "falcon_mamba", "jamba", "mamba", "mamba2", "recurrent_gemma"}


def layer_types(config: Config) -> list[str]:
    """The kind of every layer, in order.

    Raises:
        SpecError: The list in the config does not fit the model.
        UnsupportedModel: It names a kind that is not known.
    """
    given = [] if config.model_type in _COMPUTED else config.texts("layer_types")
    if given:
        return _adapted(config, _checked(config, [_OLD.get(kind, kind) for kind in given]))
    if config.model_type == "nemotron_h":
        return nemotron(config)
    rule = _rule(config)
    return [rule(index) for index in range(config.layers)]


def _checked(config: Config, kinds: list[str]) -> list[str]:
    for kind in kinds:
        if kind not in _KINDS:
            raise UnsupportedModel(f"{config.where}: layer type {show(kind)} is not supported")
    counts = config.model_type == "nemotron_h"  # the list itself counts the layers
    wanted = min(len(kinds), MOST_LAYERS) if counts else config.layers
    if _goes_on(config, len(kinds) - wanted):
        kinds = kinds[:wanted]
    if len(kinds) != wanted:
        shown = config.stated_name("layer_types")
        raise config.error(shown, f"names {len(kinds)} layers, but there are {wanted}")
    return kinds


def _goes_on(config: Config, more: int) -> bool:
    """Whether the list names prediction layers too, ``more`` than the decoder has."""
    if config.model_type == "step3p5":
        return more == (config.maybe("num_nextn_predict_layers", least=0) or 0)
    return config.model_type == "deepseek_v4"


def _adapted(config: Config, kinds: list[str]) -> list[str]:
    kind = config.model_type
    if kind.startswith("gemma4"):
        kinds[-1] = FULL
    saved = "per_layer_config" in config.stated  # a file saved anew is literal
    if kind == "qwen4_exp_text" or (kind == "dots3_note_text" and not saved):
        full = FULL if config.stated.get("use_dsa") is False else INDEXED
        kinds = [full if one == FULL else one for one in kinds]
    return kinds


def _rule(config: Config) -> Rule:
    own = RULES.get(config.model_type)
    if own is not None:
        return own(config)
    if window(config) is not None:
        return always(SLIDING)
    if config.maybe("attention_chunk_size") is not None:
        raise UnsupportedModel(
            f"{config.where}: not supported: field 'attention_chunk_size': chunked attention, "
            f"which model type {config.model_type!r} does not have"
        )
    return always(FULL)
