"""``kvhouse doctor``."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from kvhouse.cli import options
from kvhouse.cli.output import print_json
from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show_path

#: The exit code where a log has no figure that is known.
NOTHING_FOUND = 3


def doctor_command(
    log: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="A log, or - for standard input.")
    ] = "-",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model that it served, as `kvhouse plan` takes it. By default the catalogue's "
            "model of the name in the log.",
        ),
    ] = None,
    engine_option: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-option",
            metavar="NAME=VALUE",
            help="What the server was started with and the log does not say, such as "
            "max_model_len=8192 or version=0.11; may be repeated.",
        ),
    ] = None,
    lang: Annotated[str, typer.Option(help="en or zh.")] = "en",
    as_json: options.AsJson = False,
) -> None:
    """Explain another engine's log: what happened, where the memory is, what to change.

    Reads vLLM, SGLang, llama.cpp, TensorRT-LLM, TGI and PyTorch's out-of-memory errors. Exits
    with 3 where it finds no figure that it knows.

    Example: kvhouse doctor server.log --model llama-3.1-8b
    """
    from kvhouse.doctor import examine
    from kvhouse.doctor.texts import texts_of

    texts = texts_of(lang)
    settings = dict(options.pair(text) for text in engine_option or ())
    with _opened(log) as stream:
        report = examine(stream, model, settings)
    if as_json:
        print_json(report.to_dict(texts))
    else:
        from rich.console import Console

        from kvhouse.views.doctor import show_report

        show_report(Console(), report, texts)
    if not report.found:
        raise typer.Exit(NOTHING_FOUND)


def _opened(log: str) -> AbstractContextManager[BinaryIO]:
    if log == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(log).open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KvhouseError(f"log {show_path(log)}: cannot be read: {reason}") from None
