"""``kvhouse doctor``."""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from kvhouse.cli import options
from kvhouse.cli.output import print_json
from kvhouse.cli.serve import KEYS_VARIABLE, keys_named
from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show_path

if TYPE_CHECKING:
    from kvhouse.doctor.log import Log
    from kvhouse.doctor.report import Report
    from kvhouse.doctor.texts import Texts

#: The exit code where a log has no figure that is known.
NOTHING_FOUND = 3


def doctor_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|URL|-]",
            help="A log, a saved scrape of /metrics, a server's address, or - for standard input.",
        ),
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
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Ask the address again and again, with what happens per second, until Ctrl-C; "
            "then explain all that was seen.",
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="From one poll of --watch to the next.")
    ] = 5.0,
    lang: Annotated[str, typer.Option(help="en or zh.")] = "en",
    as_json: options.AsJson = False,
) -> None:
    """Explain another engine's log or metrics: what happened, where the memory is, what to change.

    Reads logs of vLLM, SGLang, llama.cpp, TensorRT-LLM, TGI and PyTorch's out-of-memory errors, and
    /metrics of vLLM, SGLang, llama.cpp, TGI and kvhouse. A server is sent the first key of
    KVHOUSE_API_KEY. Exits with 3 where it finds no figure that it knows.

    Example: kvhouse doctor server.log --model llama-3.1-8b

    Example: kvhouse doctor http://localhost:8000/metrics --watch
    """
    from kvhouse.doctor.metrics.fetch import is_url
    from kvhouse.doctor.report import report_of, settings_of
    from kvhouse.doctor.texts import texts_of
    from kvhouse.spec.resolve import load

    texts = texts_of(lang)
    settings = settings_of(dict(options.pair(text) for text in engine_option or ()))
    if watch and not is_url(source):
        raise KvhouseError(f"--watch {show_path(source)}: a server is watched by its address")
    if not 0.1 <= every <= 86400:
        raise KvhouseError(f"--every {every:g}: give from 0.1 to 86,400 seconds")
    spec = None if model is None else load(model)
    log = _watched(source, every, texts, as_json) if watch else _read(source)
    _show(report_of(log, spec, settings), texts, as_json, as_line=watch)


def _show(report: Report, texts: Texts, as_json: bool, as_line: bool) -> None:
    if as_json and as_line:
        print(json.dumps({"summary": report.to_dict(texts)}, allow_nan=False))
    elif as_json:
        print_json(report.to_dict(texts))
    else:
        from rich.console import Console

        from kvhouse.views.doctor import show_report

        show_report(Console(), report, texts)
    if not report.found:
        raise typer.Exit(NOTHING_FOUND)


def _read(source: str) -> Log:
    from kvhouse.doctor.metrics.fetch import is_url
    from kvhouse.doctor.report import read
    from kvhouse.web.fetch import PATIENCE

    if is_url(source):
        return read(io.BytesIO(_asked(source, PATIENCE)))
    with _opened(source) as stream:
        return read(stream)


def _watched(url: str, every: float, texts: Texts, as_json: bool) -> Log:
    """Poll until Ctrl-C, saying each poll as it comes."""
    from rich.console import Console

    from kvhouse.doctor.metrics.watch import Watched, polls
    from kvhouse.views.doctor_watch import show_poll, show_poll_head

    console, watched = Console(), Watched()
    patience = min(10.0, max(1.0, every))
    with suppress(KeyboardInterrupt):
        for poll in polls(
            lambda: _asked(url, patience), time.monotonic, lambda: time.sleep(every), watched
        ):
            if as_json:
                print(json.dumps(poll.to_dict(), allow_nan=False), flush=True)
                continue
            if poll.number == 1:
                show_poll_head(console, texts)
            show_poll(console, poll)
    return watched.log()


def _asked(url: str, patience: float) -> bytes:
    """What a server answers to the first key of the environment, if there is one.

    Raises:
        KvhouseError: There is no answer, or it wants another key.
    """
    from kvhouse.doctor.metrics.fetch import fetch
    from kvhouse.web.address import Address, FetchError

    key = next(iter(keys_named()), None)
    try:
        return fetch(url, patience, key)
    except FetchError as error:
        address = Address.of(url)
        if error.status != 401 or address.headers:
            raise
        said = "asks for a key: set" if key is None else "does not take the first key of"
        raise FetchError(f"{address.shown}: {said} {KEYS_VARIABLE}", 401) from None


def _opened(log: str) -> AbstractContextManager[BinaryIO]:
    if log == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(log).open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KvhouseError(f"log {show_path(log)}: cannot be read: {reason}") from None
