"""A decoder's config as its class would fill it: old names resolved, absent fields in place.

A ``config.json`` states what differs from its class; what is left out has the value that the class
has for it. ``architectures.json`` holds, for each ``model_type``, the names of fields and the
values that decide what is kept. The number of layers and the hidden size are never filled in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.spec.fields import Fields, show

# Where larger models keep the config of their decoder.
_PLACES = ("text_config", "llm_config", "language_config", "thinker_config.text_config")

# The largest sizes that are believed, each far beyond any model that was built.
MOST_LAYERS = 2**12
MOST_SIZE = 2**26
MOST_TOKENS = 2**32

_Entry = Mapping[str, Any]


@cache
def architectures() -> dict[str, dict[str, Any]]:
    """Every ``model_type`` that is known: names of its fields, and what their absence means."""
    text = Path(__file__).with_name("architectures.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


class Config(Fields):
    """The fields of one decoder, filled.

    Attributes:
        model_type: The type that the decoder's own rules go by.
        outer_type: The type of the whole file, which may hold more than the decoder.
        entry: What ``architectures.json`` says of the type.
    """

    def __init__(self, values: Mapping[str, object], where: str, model_type: str) -> None:
        """Fill ``values``, the fields of a decoder of ``model_type``."""
        self.model_type = self.outer_type = model_type
        self.entry: _Entry = architectures()[model_type]
        if "like" in self.entry:
            own = self.entry.get("defaults", {})
            self.model_type = self.entry["like"]
            like = architectures()[self.model_type]
            self.entry = {**like, "defaults": {**like["defaults"], **own}}
        names: dict[str, tuple[str, ...]] = {
            standard: tuple(own) for standard, own in self.entry.get("names", {}).items()
        }
        super().__init__(values, where, {"dtype": ("dtype", "torch_dtype"), **names})
        stated = dict(values)
        for name, value in self.entry.get("defaults", {}).items():
            if not self.states(name):
                stated[names.get(name, (name,))[0]] = value
        self._values = stated
        self.stated = values

    def declares(self, name: str) -> bool:
        """Whether the class has a value for a field that is absent, be it null."""
        return name in self.entry.get("defaults", {}) or name in self.entry.get("names", {})

    def size(self, name: str, least: int = 1) -> int:
        """A size that must be known, from the file or from the class."""
        value = self.maybe(name, least)
        if value is None:
            raise self.error(self.stated_name(name), "is missing")
        return value

    def maybe(self, name: str, least: int = 1) -> int | None:
        """A size, or None where neither the file nor the class has one."""
        return self.optional_integer(name, MOST_SIZE, least)

    def either(self, *names: str) -> int:
        """The first of several fields that is stated; the last one must be."""
        for name in names[:-1]:
            value = self.maybe(name)
            if value is not None:
                return value
        return self.size(names[-1])

    def number(self, name: str) -> float:
        """A number above 0 that need not be whole."""
        value = self._find(name)[1]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**16:
            raise self.error(self.stated_name(name), f"is {show(value)}, not a number above 0")
        return value

    def integers(self, name: str) -> list[int] | None:
        """A list of whole numbers, or None when the field is absent."""
        shown, value = self._find(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(item, int) and 0 <= item < MOST_SIZE for item in value
        ):
            raise self.error(shown, f"is {show(value)}, not a list of whole numbers")
        return [int(item) for item in value]

    def layer_numbers(self, name: str, layers: int, first: int = 0) -> list[int] | None:
        """A list of numbers of layers, counted from ``first``, or None when the field is absent."""
        given = self.integers(name)
        wrong = [number for number in given or () if not first <= number < layers + first]
        if wrong:
            problem = f"names layer {wrong[0]}, but there are {layers}, counted from {first}"
            raise self.error(self.stated_name(name), problem)
        return given

    def inners(self, name: str) -> list[Config]:
        """The objects in a list, each as fields of the same decoder."""
        shown, value = self._find(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(shown, f"is {show(value)}, not a list of objects")
        return [self._part(item, f"{shown}[{index}]") for index, item in enumerate(value)]

    def inner(self, name: str) -> Config | None:
        """The fields of an object in the config, as fields of the same decoder; None if absent."""
        shown, value = self._find(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(shown, f"is {show(value)}, not an object")
        return self._part(value, shown)

    def _part(self, values: Mapping[str, object], shown: str) -> Config:
        part = Config({}, f"{self.where}: in {shown!r}", self.model_type)
        part._values = part.stated = values
        return part

    @property
    def layers(self) -> int:
        """Layers, as the file states them."""
        return self.integer("num_hidden_layers", MOST_LAYERS)

    @property
    def heads(self) -> int:
        """Query heads."""
        if self.model_type == "jetmoe":
            return self.size("num_key_value_heads") * self.size("num_experts_per_tok")
        return self.size("num_attention_heads")

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.integer("hidden_size", MOST_SIZE)


def decoder_config(config: Mapping[str, object], where: str) -> Config:
    """The config of the decoder in a file, which may be one part of a larger model.

    Raises:
        SpecError: ``model_type`` is missing, or a part of the config is no object.
        UnsupportedModel: The ``model_type`` is not known.
    """
    fields = Fields(config, where)
    model_type = fields.text("model_type")
    if model_type is None:
        raise fields.error("model_type", "is missing")
    entry: _Entry = architectures().get(model_type) or _wrapper(config, where, model_type)
    if "refused" in entry:
        raise UnsupportedModel(
            f"{where}: model type {model_type!r} is not supported: {entry['refused']}"
        )
    if "inside" not in entry:
        return Config(config, where, model_type)
    decoder = _inside(config, where, entry)
    decoder.outer_type = model_type
    return decoder


def _inside(config: Mapping[str, object], where: str, entry: _Entry) -> Config:
    """The part of a larger model that is the decoder."""
    key, kind = entry["inside"], entry["text"]
    part = _part(config, where, key)
    if part is None:
        # Some files state the decoder's fields at the top level.
        return Config({**entry.get("text_defaults", {}), **config}, where, kind)
    place = f"{where}: in {key!r}"
    inner_type = Fields(part, place).text("model_type") or kind
    if inner_type not in architectures() or "inside" in architectures()[inner_type]:
        raise _unknown(inner_type, place)
    dtype = {name: config[name] for name in ("dtype", "torch_dtype") if config.get(name)}
    if any(part.get(name) for name in ("dtype", "torch_dtype")):
        dtype = {}
    return Config({**part, **dtype}, place, inner_type)


def _part(config: Mapping[str, object], where: str, key: str) -> Mapping[str, object] | None:
    """The object at a key, or at several with dots between; None where it is absent."""
    part: object = config
    for name in key.split("."):
        part = part.get(name) if isinstance(part, dict) else None
        if part is None:
            return None
        if not isinstance(part, dict):
            raise Fields(config, where).error(key, f"is {show(part)}, not an object")
    return part if isinstance(part, dict) else None


def _wrapper(config: Mapping[str, object], where: str, model_type: str) -> _Entry:
    """A larger model that is not known itself, around a decoder that names a type that is."""
    for key in _PLACES:
        part = _part(config, where, key)
        if part is not None and isinstance(part.get("model_type"), str):
            return {"inside": key, "text": part["model_type"]}
    raise _unknown(model_type, where)


def _unknown(model_type: str, where: str) -> SpecError:
    return UnsupportedModel(
        f"{where}: model type {show(model_type)} is not supported: "
        "nothing is known of how its layers keep keys and values"
    )
