"""``kvhouse models``."""

from __future__ import annotations

from typing import Annotated

import typer

from kvhouse.cli import options
from kvhouse.cli.output import print_json


def models_command(
    check: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Say how the engine runs a model: a catalogue name, directory with a "
            "config.json, config file, GGUF file or org/name. Weights are not needed.",
        ),
    ],
    as_json: options.AsJson = False,
) -> None:
    """Say whether the engine runs a model packed with others, request by request, or not at all.

    Example: kvhouse models --check deepseek-v3
    """
    from kvhouse.engine.support import check as check_model

    found = check_model(check)
    if as_json:
        print_json({"model": check, **found.to_dict()})
        return
    from rich.console import Console

    from kvhouse.views.capability import show_capability

    show_capability(Console(), check, found)
