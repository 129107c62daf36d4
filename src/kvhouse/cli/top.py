"""``kvhouse top``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from kvhouse.cli import options
from kvhouse.cli.output import print_json
from kvhouse.cli.serve import KEYS_VARIABLE, keys_named
from kvhouse.errors import KvhouseError

#: Lines that are kept for everything but the map.
_OTHER_LINES = 20
#: Seconds to wait for an answer, which comes between two steps.
_PATIENCE = 30.0
#: What ``/kv`` draws at most.
_MOST_CELLS = 16384


def top_command(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the server is.")
    ] = "http://127.0.0.1:8000",
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="Time between two looks.")
    ] = "1s",
    as_json: options.AsJson = False,
) -> None:
    """Show a kvhouse server's KV cache live: who holds which block, and where the bytes are.

    With --json, or into a pipe, it looks once. The first key of KVHOUSE_API_KEY is sent.

    Example: kvhouse top http://127.0.0.1:8000
    """
    pause = options.seconds(every) or 1.0
    if as_json:
        print_json(dict(_state(url, 2048)))
        return
    from rich.console import Console
    from rich.live import Live

    from kvhouse.views.top import pool_view

    console = Console()
    width = console.width
    cells = max(1, min(_MOST_CELLS, width * max(4, console.height - _OTHER_LINES)))
    state = _state(url, cells)
    if not sys.stdout.isatty():
        console.print(pool_view(state, None, width))
        return
    before: Mapping[str, Any] | None = None
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(pool_view(state, before, width), refresh=True)
                time.sleep(pause)
                before, state = state, _state(url, cells)
    except KeyboardInterrupt:  # how one leaves it
        return


def _state(url: str, cells: int) -> Mapping[str, Any]:
    """What ``/kv`` gives.

    Raises:
        KvhouseError: There is no such server, or it does not want to answer.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

    from kvhouse.spec.fields import show

    class Stay(HTTPRedirectHandler):
        """Sends the key nowhere else."""

        def redirect_request(self, *_: object) -> None:
            """Nowhere."""

    if not url.startswith(("http://", "https://")):
        raise KvhouseError(f"{show(url)}: give the server's URL, such as http://127.0.0.1:8000")
    keys = keys_named()
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    try:
        asked = Request(f"{url.rstrip('/')}/kv?cells={cells}", headers=headers)
        with build_opener(ProxyHandler({}), Stay).open(asked, timeout=_PATIENCE) as answer:
            state = json.load(answer)
        if not isinstance(state, dict) or "ledger" not in state:
            raise ValueError
    except HTTPError as error:
        if error.code == 401:
            raise KvhouseError(f"{show(url)}: asks for a key: set {KEYS_VARIABLE}") from None
        raise KvhouseError(f"{show(url)}: answers /kv with status {error.code}") from None
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise KvhouseError(f"{show(url)}: no answer ({reason}): is the server up?") from None
    except ValueError:
        raise KvhouseError(f"{show(url)}: answers, but is no kvhouse server") from None
    return state
