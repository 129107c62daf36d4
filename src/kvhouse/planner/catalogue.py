"""The catalogue at a glance: what each model keeps, and under which terms it is published."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kvhouse.layout import KVLayout
from kvhouse.spec import NO_LIMIT, ModelSpec, load
from kvhouse.spec.layers import describe
from kvhouse.spec.resolve import read_catalogue

#: Format in which the list counts KV: what most engines store by default.
LISTED_FORMAT = "bf16"


@dataclass(frozen=True, slots=True)
class LayerCount:
    """So many layers of a kind."""

    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model of the catalogue.

    Attributes:
        name: What commands take.
        architecture: The class that transformers runs it with.
        layers: Its kinds of layers, and how many there are of each.
        parameters: Its weights' number, without layers for multi-token prediction;
            None where the config does not decide it.
        max_length: Longest request that it takes, in tokens; None where nothing bounds it.
        bytes_per_token: KV of one more token in bf16 while no layer lets an old one go.
        state_bytes: What a request keeps whatever its length.
        licence: Terms of its weights; None where the catalogue does not know them.
        gated: Whether the hub asks to accept them first, as far as the catalogue knows.
        package: The Python package that its weights come with, for ``kvhouse run``.
        source: Where its config is from.
    """

    name: str
    architecture: str
    layers: tuple[LayerCount, ...]
    parameters: int | None
    max_length: int | None
    bytes_per_token: int
    state_bytes: int
    licence: str | None
    gated: bool
    package: str | None
    source: str

    def to_dict(self) -> dict[str, Any]:
        """The attributes, as JSON has them."""
        return asdict(self)


def listed() -> tuple[ListedModel, ...]:
    """The catalogue's models, by name."""
    return tuple(_listed(load(name), entry) for name, entry in sorted(read_catalogue().items()))


def _listed(spec: ModelSpec, entry: dict[str, Any]) -> ListedModel:
    kinds = [describe(layer) for layer in spec.layers]
    return ListedModel(
        name=spec.name,
        architecture=spec.architecture,
        layers=tuple(LayerCount(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)),
        parameters=spec.parameters,
        max_length=None if spec.max_length == NO_LIMIT else spec.max_length,
        bytes_per_token=KVLayout.of(spec, LISTED_FORMAT).bytes_per_token,
        state_bytes=spec.state_bytes(),
        licence=entry.get("licence"),
        gated=bool(entry.get("gated")),
        package=entry.get("gguf_package"),
        source=entry["source"],
    )
