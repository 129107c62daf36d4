"""``kvhouse models``."""

from __future__ import annotations

from typing import Annotated

import typer

from kvhouse.cli import options
from kvhouse.cli.output import print_json


def models_command(
    check: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Say how the engine runs a model, which may be any that `kvhouse plan` takes: "
            "packed with other requests, request by request, or not at all, and why. "
            "No weights are needed.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the models that are built in: what each keeps of a token, and its weights' terms.

    Beside these, commands take config files, directories, GGUF files and names of the hub.

    Example: kvhouse models --check deepseek-v3
    """
    if check is not None:
        _check(check, as_json)
        return
    from kvhouse.planner.catalogue import listed

    models = listed()
    if as_json:
        print_json({"models": [model.to_dict() for model in models]})
        return
    from rich.console import Console

    from kvhouse.views.models import show_models

    show_models(Console(), models)


def _check(model: str, as_json: bool) -> None:
    from kvhouse.engine.support import check

    found = check(model)
    if as_json:
        print_json({"model": model, **found.to_dict()})
        return
    from rich.console import Console

    from kvhouse.views.capability import show_capability

    show_capability(Console(), model, found)
