"""The weights of a model: the parts of its layers, tables and head put together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvhouse.spec.config import Config
from kvhouse.spec.experts import Experts
from kvhouse.spec.pattern_rules import (
    CONV,
    HYBRID,
    HYBRID_SLIDING,
    INDEXED,
    LINEAR,
)
from kvhouse.spec.patterns import layer_types
from kvhouse.spec.weight_experts import feed_forward
from kvhouse.spec.weight_forms import FORMS
from kvhouse.spec.weight_mixers import attention, latent, sparse_indexer
from kvhouse.spec.weight_rare import RARE
from kvhouse.spec.weight_states import STATES
from kvhouse.spec.weights import Form, Part, norm_count, on, total

_LATENT = frozenset(
    [
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"),
        *("minicpm3", "sarvam_mla", "youtu", "axk1", "kimi_linear", "bailing_hybrid"),
    ]
)


@dataclass(frozen=True, slots=True)
class Weights:
    """How many weights a model has.

    Attributes:
        parameters: All, tied ones counted once.
        matmul_parameters: Those that one token is multiplied with.
        experts: Routed experts.
        exact: Whether the family's own form was counted, not a general one.
    """

    parameters: int
    matmul_parameters: int
    experts: tuple[Experts, ...]
    exact: bool


@cache
def class_fields() -> dict[str, dict[str, Any]]:
    """By ``model_type``, the values that the class has for fields which decide the weights."""
    text = Path(__file__).with_name("weight_fields.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def count_weights(config: Config) -> Weights:
    """Count the weights of a decoder.

    Raises:
        SpecError: A field that decides them is missing or impossible.
    """
    config = config.filled(class_fields().get(config.model_type, {}))
    form = FORMS.get(config.model_type) or RARE.get(config.model_type)
    exact = form is not None
    part = _whole(config, form or FORMS["llama"])
    active = sum(one.active_parameters for one in part.experts)
    return Weights(part.parameters, part.matrices + active, part.experts, exact)


def _whole(config: Config, form: Form) -> Part:
    hidden, vocab = config.hidden, config.size("vocab_size")
    parts = [layer(config, form, index, kind) for index, kind in enumerate(layer_types(config))]
    parts += [once(config) for once in form.once]
    final = form.final_norm(config) if callable(form.final_norm) else form.final_norm
    parts.append(Part(others=hidden * form.norm * final))
    if form.positions:
        parts.append(Part(others=form.positions(config) * hidden))
    return total([*parts, _embeddings(config, form, vocab)])


def _embeddings(config: Config, form: Form, vocab: int) -> Part:
    """The table, and the output projection, which multiplies also where it is the table."""
    size = vocab * (config.maybe("word_embed_proj_dim") or config.hidden)
    tied = config.flag("tie_word_embeddings", True)
    return Part(matrices=size, others=(0 if tied else size) + vocab * on(config, form.head_bias))


def layer(config: Config, form: Form, index: int, kind: str) -> Part:
    """One layer: what mixes tokens, what mixes channels, and the norms."""
    part = Part(others=norm_count(config, form) * form.norm * config.hidden)
    part += _mixer(config, form, index, kind)
    part += form.feed(config, index, kind) if form.feed else feed_forward(config, form, index)
    for beside in form.beside:
        part += beside(config, index, kind)
    return part


def _mixer(config: Config, form: Form, index: int, kind: str) -> Part:
    if form.mixer:
        return form.mixer(config, index, kind)
    if kind in (LINEAR, CONV):
        return STATES[config.model_type](config)
    if config.model_type in _LATENT:
        part = latent(config, form, index, kind)
        return part + sparse_indexer(config) if kind == INDEXED else part
    part = attention(config, form, index, kind)
    if kind in (HYBRID, HYBRID_SLIDING):
        part += STATES[config.model_type](config)
    return part
