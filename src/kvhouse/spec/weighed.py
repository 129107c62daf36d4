"""The weights of a model description, from the config that it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.spec.config import Config
from kvhouse.spec.families import FAMILIES
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.towers import towers
from kvhouse.spec.weight_count import count_weights
from kvhouse.spec.weight_experts import COUNTS
from kvhouse.spec.weight_formats import Storage


def with_weights(spec: ModelSpec, config: Mapping[str, object], decoder: Config) -> ModelSpec:
    """``spec`` with its weights, or with the reason why they are not known.

    Args:
        spec: The model without its weights.
        config: The whole config.
        decoder: The decoder in it.
    """
    try:
        storage = _storage(config, decoder, spec.dtype)
        if isinstance(storage, str):
            return replace(spec, weights_unknown=storage)
        foreign = _experts_of_others(decoder)
        if foreign:
            return replace(spec, weights_unknown=foreign)
        wrapped = decoder.stated is not config
        weights = count_weights(decoder, config if wrapped else None)
    except SpecError as error:
        if decoder.model_type in FAMILIES and not isinstance(error, UnsupportedModel):
            raise
        return replace(spec, weights_unknown=f"they cannot be counted: {error}")
    beside, note = towers(config, spec.hidden_size, wrapped)
    notes = [text for text in (weights.estimate, note) if text]
    exact = not notes
    if spec.mtp_layers:
        notes.append("layers that predict further tokens are not counted")
    return replace(
        spec,
        parameters=weights.parameters + beside,
        matmul_parameters=weights.matmul_parameters,
        experts=weights.experts,
        mixer_parameters=weights.mixers,
        storage=storage,
        weights_basis="exact" if exact else "estimated",
        weights_note="; ".join(notes),
    )


def _experts_of_others(decoder: Config) -> str:
    """Why a file of a dense class is not counted: it states experts, which the class ignores."""
    for name in COUNTS if decoder.outer_type in FAMILIES else ():
        if decoder.stated.get(name):
            return f"a mixture of experts (field {name!r}), which this class does not have"
    return ""


def _storage(config: Mapping[str, object], decoder: Config, dtype: str) -> Storage | str | None:
    """How a quantised checkpoint stores its weights; None for one that is not quantised."""
    for values in (config, decoder.stated):
        for name in ("quantization_config", "compression_config"):
            stated = values.get(name)
            if isinstance(stated, dict) and stated:
                from kvhouse.spec.quantisation import read_storage

                return read_storage(stated, f"{decoder.where}: in {name!r}", dtype)
            if stated:
                return f"its weights are quantised in a way that cannot be read (field {name!r})"
    return None
