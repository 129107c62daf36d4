"""The catalogue in a list."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from kvhouse.planner.catalogue import LISTED_FORMAT, ListedModel
from kvhouse.units import bytes_text
from kvhouse.views.tables import table

UNKNOWN = "-"

_COLUMNS = ("model", "parameters", "KV per token", "fixed", "layers", "licence")


def show_models(console: Console, models: Sequence[ListedModel]) -> None:
    """Print one row a model."""
    console.print(table("Models", _COLUMNS, map(_row, models), names=1))
    console.print(
        f"KV per token: of one more in {LISTED_FORMAT}, while no layer lets an old one go. fixed: "
        "what a request keeps whatever its length. licence: of the weights, with * where the hub "
        f"asks to accept it first; {UNKNOWN}: the catalogue does not say. + after a name: the "
        "weights come with a Python package, for kvhouse run. Sources: --json",
        soft_wrap=True,
    )


def _row(model: ListedModel) -> tuple[str, ...]:
    return (
        model.name + " +" * (model.package is not None),
        _billions(model.parameters),
        bytes_text(model.bytes_per_token),
        bytes_text(model.state_bytes) if model.state_bytes else UNKNOWN,
        ", ".join(f"{layers.count} {layers.kind}" for layers in model.layers),
        (model.licence or UNKNOWN) + " *" * bool(model.gated),
    )


def _billions(parameters: int | None) -> str:
    if parameters is None:
        return UNKNOWN
    value = parameters / 1e9
    return f"{value:,.0f} B" if value >= 100 else f"{value:.3g} B"
