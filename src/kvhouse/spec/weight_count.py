"""The weights of a model: the parts of its layers, tables and head put together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvhouse.spec.attention import indexer
from kvhouse.spec.config import Config
from kvhouse.spec.experts import Experts
from kvhouse.spec.foreign import LATENT
from kvhouse.spec.pattern_rules import (
    CONV,
    FULL,
    HYBRID,
    HYBRID_SLIDING,
    INDEXED,
    LINEAR,
    MLP,
)
from kvhouse.spec.patterns import layer_types
from kvhouse.spec.weight_experts import feed_forward
from kvhouse.spec.weight_forms import FORMS
from kvhouse.spec.weight_mixers import attention, cross_attention, latent, sparse_indexer
from kvhouse.spec.weight_states import STATES
from kvhouse.spec.weights import Form, Part, embedding_width, norm, norms, on, total


@dataclass(frozen=True, slots=True)
class Weights:
    """How many weights a model has.

    Attributes:
        parameters: All, tied ones counted once.
        matmul_parameters: Those that one token is multiplied with.
        experts: Routed experts.
        mixers: Weights in the matrices of attention or of what stands in its place.
        estimate: Why the count is an estimate, in words; empty where it is exact.
    """

    parameters: int
    matmul_parameters: int
    experts: tuple[Experts, ...]
    mixers: int
    estimate: str


@cache
def class_fields() -> dict[str, dict[str, Any]]:
    """By ``model_type``, the values that the class has for fields which decide the weights."""
    text = Path(__file__).with_name("weight_fields.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def count_weights(config: Config, around: Mapping[str, object] | None = None) -> Weights:
    """Count the weights of a decoder.

    Args:
        config: The decoder's config.
        around: The config of the larger model around it, if there is one.

    Raises:
        SpecError: A field that decides them is missing or impossible.
    """
    config = config.filled(class_fields().get(config.model_type, {}), _ties(config, around or {}))
    chosen, estimate = _form(config)
    kinds = _kinds(config)
    sparse = chosen.sparse(config) if chosen.sparse else None
    mixers = total([mixer(config, chosen, index, kind) for index, kind in enumerate(kinds)])
    rest = [
        _rest_of_layer(config, chosen, index, kind, sparse is not None and sparse(index))
        for index, kind in enumerate(kinds)
    ]
    part = total([mixers, *rest, *_outside(config, chosen)])
    active = sum(one.active_parameters for one in part.experts)
    matmul = part.matrices + active
    return Weights(part.parameters, matmul, part.experts, mixers.matrices, estimate)


def _form(config: Config) -> tuple[Form, str]:
    """The family's form, and what makes it an estimate if it is one."""
    own = FORMS.get(config.model_type)
    if own is not None:
        return own, ""
    # The rarer forms are read only for the models that need them.
    from kvhouse.spec.weight_encoders import ENCODERS
    from kvhouse.spec.weight_estimates import ESTIMATES, general
    from kvhouse.spec.weight_rare import RARE

    estimate = ESTIMATES.get(config.model_type)
    own = RARE.get(config.model_type) or ENCODERS.get(config.model_type)
    if estimate is not None:
        form, missing = estimate
        return form, f"an estimate without {missing}"
    if own is None:
        return general(config), "an estimate by a general formula, not by the family's own"
    if config.stated.get("routed_expert_hidden_size"):
        return own, "an estimate from the published sizes: the class of Kimi K3 is not known here"
    return own, ""


def _ties(config: Config, around: Mapping[str, object]) -> dict[str, object]:
    """What decides over tied embeddings: the whole model, then its decoder; files, then classes."""
    name = "tie_word_embeddings"
    outer = class_fields().get(config.outer_type, {}) if around else {}
    for values in (around, config.stated, outer):
        if isinstance(values.get(name), bool):
            return {name: values[name]}
    return {}


def _kinds(config: Config) -> list[str]:
    """The kind of every layer that has weights of its own, however often it runs."""
    if config.model_type == "reformer":  # hashes or looks nearby
        return [FULL] * len(config.texts("attn_layers"))
    if config.model_type == "hrm_text":  # two stacks, of which a file may count the passes
        return [FULL] * (2 * (config.maybe("num_layers_per_stack") or config.layers))
    kinds = layer_types(config)
    if config.model_type == "dory":  # a saved file counts MLPs as layers
        return [kind for kind in kinds if kind != MLP]
    return kinds


def _outside(config: Config, form: Form) -> list[Part]:
    """Tables, the last norm, the output projection and what else lies outside the layers."""
    parts = [once(config) for once in form.once]
    final = form.final_norm(config) if callable(form.final_norm) else form.final_norm
    parts += [norm(config, form)] if final else []
    if form.positions:
        parts.append(Part(others=form.positions(config)))
    return [*parts, _embeddings(config, form, config.size("vocab_size"))]


def _embeddings(config: Config, form: Form, vocab: int) -> Part:
    """The table, and the output projection, which multiplies also where it is the table."""
    size = vocab * embedding_width(config, form)
    tied = form.ties and config.flag("tie_word_embeddings", True)
    return Part(matrices=size, others=(0 if tied else size) + vocab * on(config, form.head_bias))


def _rest_of_layer(config: Config, form: Form, index: int, kind: str, sparse: bool) -> Part:
    """What mixes channels in a layer, and the norms."""
    part = norms(config, form)
    part += form.feed(config, index, kind) if form.feed else feed_forward(config, form, sparse)
    for beside in form.beside:
        part += beside(config, index, kind)
    return part


def mixer(config: Config, form: Form, index: int, kind: str) -> Part:
    """What mixes tokens in a layer."""
    part = _own_mixer(config, form, index, kind)
    return part + cross_attention(config, form) if on(config, form.cross) else part


def _own_mixer(config: Config, form: Form, index: int, kind: str) -> Part:
    if form.mixer:
        return form.mixer(config, index, kind)
    if kind in (LINEAR, CONV):
        return _state(config)
    if config.model_type in LATENT:
        part = latent(config, form, index, kind)
        has_indexer = kind == INDEXED and indexer(config, index)
        return part + sparse_indexer(config) if has_indexer else part
    part = attention(config, form, index, kind)
    if kind in (HYBRID, HYBRID_SLIDING):
        part += _state(config)
    return part


def _state(config: Config) -> Part:
    """The recurrent part of a layer; nothing for families that are only estimated without it."""
    state = STATES.get(config.model_type)
    return state(config) if state else Part()
