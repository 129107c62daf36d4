"""A server's pool in the terminal, as ``GET /kv`` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.units import bytes_text
from kvhouse.views.palette import DARK, OWNERS

#: What a block of each class looks like; requests give the colour of the first three.
_SIGNS = {
    "used": "█",
    "reserved": "▒",
    "internal": "░",
    "shared": "▓",
    "external": "/",
    "cached": "·",
    "free": "·",
}
_OWN_COLOURS = {
    "shared": DARK["shared"],
    "external": DARK["scattered"],
    "cached": DARK["cached"],
    "free": DARK["free"],
}
_HELD = ("used", "shared", "reserved", "internal")
#: Requests in the table.
_LISTED = 10

State = Mapping[str, Any]


def pool_view(state: State, before: State | None, width: int) -> RenderableType:
    """Everything that ``kvhouse top`` shows.

    Args:
        state: What ``/kv`` gave.
        before: What it gave earlier, from which rates are taken.
        width: Characters in a line.
    """
    return Group(
        _facts(state, before),
        Text(),
        _bar(state, width),
        _legend(state),
        Text(),
        _map(state, width),
        Text(),
        _requests(state),
    )


def _facts(state: State, before: State | None) -> Text:
    pool, totals, ledger = state["pool"], state["totals"], state["ledger"]
    held = sum(ledger[name] for name in _HELD)
    lines = [
        f"{state['model']}: {bytes_text(pool['bytes'])}, {pool['blocks']:,} blocks of "
        f"{pool['block_tokens']} tokens ({pool['kv_format']}, {pool['policy']})",
        f"{state['running']:,} running · {state['waiting']:,} waiting · "
        f"{held / max(1, ledger['total']):.0%} held · {totals['preemptions']:,} preemptions · "
        f"{totals['found_tokens']:,} tokens found in the cache",
    ]
    rates = []
    passed = state["seconds"] - before["seconds"] if before else 0.0
    if before and passed > 0:
        made = totals["generated_tokens"] - before["totals"]["generated_tokens"]
        rates.append(f"{made / passed:,.1f} output tokens/s")
        decoding = totals["decode_seconds"] - before["totals"]["decode_seconds"]
        if totals["decode_bytes"] is not None and decoding > 0:
            read = totals["decode_bytes"] - before["totals"]["decode_bytes"]
            rates.append(f"{read / decoding / 1e9:,.1f} GB/s read by decoding")
    if rates:
        lines.append(f"{' · '.join(rates)} (measured)")
    return Text("\n".join(lines))


def _bar(state: State, width: int) -> Text:
    """The ledger as one line; what there is at all has a character of its own."""
    ledger = state["ledger"]
    total = max(1, ledger["total"])
    bar, ended, place = Text(), 0, 0
    for name in LEDGER_CLASSES:
        ended += ledger[name]
        until = max(round(width * ended / total), place + (ledger[name] > 0))
        bar.append("█" * (min(until, width) - place), style=DARK[name])
        place = min(until, width)
    return bar


def _legend(state: State) -> Text:
    legend = Text()
    for name in LEDGER_CLASSES:
        if state["ledger"][name]:
            legend.append("█ ", style=DARK[name])
            legend.append(f"{name} {bytes_text(state['ledger'][name])}   ")
    return legend


def _map(state: State, width: int) -> Text:
    """Every drawn block as a character, line by line."""
    cells: list[tuple[str, str]] = []
    for run in state["map"]:
        name, owner = run["class"], run["request"]
        colour = _OWN_COLOURS.get(name) or DARK[f"owner-{(owner or 0) % OWNERS}"]
        cells += [(_SIGNS[name], colour)] * run["count"]
    drawn = Text()
    for at, cell in enumerate(cells):
        if at and at % width == 0:
            drawn.append("\n")
        drawn.append(*cell)
    return drawn


def _requests(state: State) -> RenderableType:
    requests = state["requests"]
    if not requests:
        return Text("no requests")
    table = Table(box=None, pad_edge=False)
    for name in ("request", "state", "tokens", "output", "of at most", "blocks"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for one in requests[:_LISTED]:
        tokens = one["prompt_tokens"] + one["generated_tokens"]
        counts = (tokens, one["generated_tokens"], one["max_new_tokens"], one["blocks"])
        number = Text(f"{one['id']:,}", style=DARK[f"owner-{one['id'] % OWNERS}"])
        table.add_row(number, one["state"], *(f"{count:,}" for count in counts))
    more = len(requests) - _LISTED
    return Group(table, Text(f"and {more:,} more")) if more > 0 else table
