"""``kvhouse top``."""

from __future__ import annotations

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

    from kvhouse.views.pool_state import MOST_CELLS
    from kvhouse.views.top import pool_view

    console = Console()
    width = console.width
    cells = max(1, min(MOST_CELLS, width * max(4, console.height - _OTHER_LINES)))
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
        KvhouseError: There is no such server, it does not want to answer, or it is another one.
    """
    from kvhouse.views.pool_state import read_state
    from kvhouse.web.address import Address, FetchError
    from kvhouse.web.fetch import fetch

    address = Address.of(url)
    keys = keys_named()
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    try:
        content = fetch(address.at(f"{address.path}/kv", f"cells={cells}"), headers, _PATIENCE)
    except FetchError as error:
        if error.status == 401:
            raise KvhouseError(f"{address.shown}: asks for a key: set {KEYS_VARIABLE}") from None
        raise
    return read_state(content, address.shown)
