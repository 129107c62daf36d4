"""How the engine can run a model: packed, one request at a time, or not at all.

Nothing here knows one architecture from another. What a model keeps must have tensors in the
pool; then a narrow model of its class is tried out (``engine.probe``).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any, Literal, get_args

from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from kvhouse.engine.adapter import Kind
from kvhouse.engine.configs import read_model_config
from kvhouse.engine.kv import refuse_what_has_no_tensors
from kvhouse.engine.narrow import Heads, narrow
from kvhouse.engine.probe import Trial, random_model
from kvhouse.engine.quiet import quiet
from kvhouse.engine.sequential import CONTINUATIONS, Continuation
from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.layout import KVLayout
from kvhouse.spec import ModelSpec
from kvhouse.spec.hf_config import read_config

#: Larger models take too long to try out.
_MOST_PARAMETERS = 10**8


@dataclass(frozen=True, slots=True)
class Capability:
    """How the engine can run a model.

    Attributes:
        kind: The way.
        reason: Why it is not packed, or why requests must be shorter than the model takes them;
            empty where neither is so.
        max_length: The longest request that is computed exactly; None for the model's own limit.
        continuation: How the model goes on from recurrent states; None where it has none.
        fast: Whether our own forward pass, where it is taken, is right.
    """

    kind: Literal["packed", "per_sequence", "refused"]
    reason: str = ""
    max_length: int | None = None
    continuation: Continuation | None = None
    fast: bool = True

    @property
    def way(self) -> Kind:
        """``kind`` of a model that is not refused."""
        assert self.kind != "refused"
        return self.kind

    def limit(self, spec: ModelSpec) -> ModelSpec:
        """The model, with a longest context for which the engine computes it exactly."""
        if self.max_length is None:
            return spec
        return replace(spec, max_length=min(spec.max_length, self.max_length))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": self.kind, "reason": self.reason, "max_length": self.max_length}


def capability(config: PreTrainedConfig) -> Capability:
    """How the engine can run models of a config. The first answer for each takes a second or so."""
    text = config.to_json_string(use_diff=False)
    return _capability(_Known(type(config), text, copy.deepcopy(config)))


@dataclass(frozen=True, slots=True)
class _Known:
    """A config that can be looked up."""

    kind: type[PreTrainedConfig]
    text: str
    config: PreTrainedConfig = field(compare=False)


def check(source: str) -> Capability:
    """How the engine can run what names a model; see ``configs.read_model_config``.

    Raises:
        KvhouseError: Nothing is there, or it is damaged.
    """
    try:
        return capability(read_model_config(source))
    except UnsupportedModel as error:
        return Capability("refused", str(error))


@lru_cache(maxsize=256)
def _capability(known: _Known) -> Capability:
    config = known.config
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return Capability("refused", "transformers has no causal language model of its class")
    try:
        spec = _spec_of(config)
        refuse_what_has_no_tensors(KVLayout.of(spec, "fp32"))
    except KvhouseError as error:
        return Capability("refused", str(error))
    found = _tried(config, spec)
    longest, why = min(_limits(config, spec), default=(spec.max_length, ""))
    if found.kind == "refused" or longest >= spec.max_length:
        return found
    reasons = [found.reason, f"at most {longest:,} tokens: {why}"]
    return replace(found, reason="; ".join(filter(None, reasons)), max_length=longest)


def _tried(config: PreTrainedConfig, spec: ModelSpec) -> Capability:
    """Try narrow models until one runs; the first failure is what is told."""
    refused: Capability | None = None
    for small in _narrowed(config, spec):
        try:
            with quiet():
                trial = Trial(random_model(small), _spec_of(small))
        except Exception as error:
            reason = f"no model of its class can be tried out: {_line(error)}"
            refused = refused or Capability("refused", reason)
            continue
        found = _verdict(trial, has_states=any(_states(spec)))
        if found.kind != "refused":
            return found
        refused = found
    return refused or Capability("refused", "no model of its class can be made narrow")


def _verdict(trial: Trial, *, has_states: bool) -> Capability:
    if has_states:
        return _verdict_of_states(trial)
    packed = _problem(trial, "packed")
    if not packed:
        return Capability("packed", fast=not _problem(trial, "packed", fast=True))
    alone = _problem(trial, "per_sequence")
    if not alone:
        return Capability("per_sequence", packed)
    return Capability("refused", f"{packed}; one by one, {alone}")


def _verdict_of_states(trial: Trial) -> Capability:
    """The fastest way of going on from states that is right."""
    first = ""
    for going_on in CONTINUATIONS:
        problem = _problem(trial, "per_sequence", going_on)
        if not problem:
            return Capability("per_sequence", going_on.reason, None, going_on)
        first = first or problem
    return Capability("refused", f"its layers keep recurrent states; one by one, {first}")


def _states(spec: ModelSpec) -> Iterator[bool]:
    return (bool(part.state) for layer in spec.layers for part in layer.parts)


def _problem(
    trial: Trial, kind: Kind, continuation: Continuation | None = None, *, fast: bool = False
) -> str:
    """What is wrong with running the tried model in this way; empty if nothing is."""
    try:
        with quiet():
            agrees = trial.agrees(kind, continuation, fast=fast)
    except UnsupportedModel as error:
        return str(error)
    except Exception as error:
        return f"its forward pass fails: {_line(error)}"
    return "" if agrees else "its answers are not those of its own forward pass"


def _narrowed(config: PreTrainedConfig, spec: ModelSpec) -> Iterator[PreTrainedConfig]:
    """Narrow configs, the smallest first; not every class takes every one."""
    kinds = [_kinds(spec, number) for number in range(len(spec.layers))]
    # Layers that share weights with an earlier one of their kind need that one and themselves.
    enough, twice = (max(2, *_ends(kinds, count)) for count in (1, 2))
    for layers, heads in product((enough, twice, None), get_args(Heads)):
        try:
            small = narrow(config, layers, heads)
            fits = (_spec_of(small).parameters or 0) < _MOST_PARAMETERS
        except Exception:
            continue
        if fits:
            yield small


def _ends(kinds: list[tuple[object, ...]], count: int) -> Iterator[int]:
    """How many layers it takes to have each kind ``count`` times, where there are so many."""
    for kind in set(kinds):
        places = [number for number, one in enumerate(kinds) if one == kind]
        yield places[min(count, len(places)) - 1] + 1


def _kinds(spec: ModelSpec, number: int) -> tuple[object, ...]:
    parts = spec.layers[number].parts
    return tuple((type(part), part.reach, part.vectors) for part in parts)


def _spec_of(config: PreTrainedConfig) -> ModelSpec:
    return read_config(
        json.loads(config.to_json_string(use_diff=False)), config.model_type, "its config"
    )


def _limits(config: PreTrainedConfig, spec: ModelSpec) -> Iterator[tuple[int, str]]:
    """Lengths beyond which the model computes something else, and what.

    Long RoPE has two sets of frequencies and takes the second for all rows of a batch once one of
    them is longer than what the model was first trained on. Dynamic RoPE changes its own beyond
    the longest context only.
    """
    decoder = config.get_text_config(decoder=True)
    rope = getattr(decoder, "rope_parameters", None) or {}
    for one in (rope, *rope.values()):
        if isinstance(one, dict) and one.get("rope_type") == "longrope":
            yield (
                one["original_max_position_embeddings"],
                ("beyond them its long RoPE turns all requests of a batch by other frequencies"),
            )
    for part in (part for layer in spec.layers for part in layer.parts):
        if part.attended is not None:
            yield part.attended, "beyond them an indexer selects what is attended to"


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def require_support(config: PreTrainedConfig) -> Capability:
    """How the engine runs models of a config.

    Raises:
        UnsupportedModel: It would not compute them exactly.
    """
    found = capability(config)
    if found.kind == "refused":
        raise UnsupportedModel(
            f"the engine cannot run model type {config.model_type!r}: {found.reason}"
        )
    return found
