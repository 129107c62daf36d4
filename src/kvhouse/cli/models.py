"""``kvhouse models``."""

from __future__ import annotations

from kvhouse.cli import options
from kvhouse.cli.output import print_json


def models_command(as_json: options.AsJson = False) -> None:
    """List the models that are built in: what each keeps of a token, and its weights' terms.

    Beside these, commands take config files, directories, GGUF files and names of the hub.

    Example: kvhouse models --json
    """
    from kvhouse.planner.catalogue import listed

    models = listed()
    if as_json:
        print_json({"models": [model.to_dict() for model in models]})
        return
    from rich.console import Console

    from kvhouse.views.models import show_models

    show_models(Console(), models)
