"""The catalogue in a list."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from kvhouse.planner.catalogue import LISTED_FORMAT, ListedModel
from kvhouse.units import bytes_text
from kvhouse.views.tables import table

UNKNOWN = "-"

_COLUMNS = ("model", "para-\nmeters", "KV per\ntoken", "layers", "fixed", "licence")
_PROSE = (3, 5)
#: Columns of a screen that takes all of this, and of one that takes the first four without breaking
#: a word.
_WIDE, _NARROW = 100, 80


def show_models(console: Console, models: Sequence[ListedModel]) -> None:
    """Print one row a model."""
    shown = len(_COLUMNS) if console.width >= _WIDE else 4
    rows = (_row(model)[:shown] for model in models)
    prose = _PROSE if console.width >= _NARROW else None
    console.print(table("Models", _COLUMNS[:shown], rows, names=1, prose=prose))
    if shown < len(_COLUMNS):
        console.print(f"fixed and licence: on {_WIDE} columns or more, or --json.", soft_wrap=True)
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
        ", ".join(f"{layers.count} {layers.kind}" for layers in model.layers),
        bytes_text(model.state_bytes) if model.state_bytes else UNKNOWN,
        (model.licence or UNKNOWN) + " *" * bool(model.gated),
    )


def _billions(parameters: int | None) -> str:
    if parameters is None:
        return UNKNOWN
    value = parameters / 1e9
    return f"{value:,.0f} B" if value >= 100 else f"{value:.3g} B"
