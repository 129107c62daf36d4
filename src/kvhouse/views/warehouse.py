"""One pool handed out in two ways, as shelves side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from string import ascii_lowercase, ascii_uppercase

from rich.console import Console
from rich.text import Text

from kvhouse.core.refusal import Refusal
from kvhouse.replayer.moments.warehouse import Shelves, Warehouse, WarehouseOutcome
from kvhouse.units import GIB, bytes_text
from kvhouse.views.palette import DARK, OWNERS
from kvhouse.views.replay import LEDGER_NAMES
from kvhouse.views.tables import say_whole, table

_NAMES = ascii_uppercase + ascii_lowercase
_HELD, _FREE = "░", "·"


def show_warehouse(console: Console, outcome: WarehouseOutcome) -> None:
    """Print what waits, the shelves of both policies, and where the bytes are."""
    setting, pair = outcome.setting, [*outcome.shelves.values()]
    say = partial(say_whole, console)
    say(_head(outcome), "bold")
    say(_waiting(setting))
    say()
    for shelves in pair:
        say(f"{shelves.policy}: {shelves.running:,} requests are in. {_refused(shelves.refusal)}")
    say()
    width = setting.cells + 2
    heads = [f"{shelves.policy}, {shelves.running:,} at once".ljust(width) for shelves in pair]
    say(" " * 8 + "  ".join(heads).rstrip(), "bold")
    for line in _drawn(outcome, pair):
        console.print(line, soft_wrap=True)
    cell = bytes_text(outcome.blocks_per_cell * outcome.block_bytes)
    say(
        f"A character is {cell}: a letter for a request's tokens, {_HELD} held and empty, "
        f"{_FREE} free.\n"
    )
    title = f"Where the {bytes_text(pair[0].ledger.total)} are at this moment (exact)"
    console.print(table(title, ("", *(shelves.policy for shelves in pair)), _rows(pair)))


def _head(outcome: WarehouseOutcome) -> str:
    setting = outcome.setting
    return (
        f"{bytes_text(setting.kv_memory)} for the keys and values of {setting.model} in "
        f"{setting.kv_format}: {outcome.blocks:,} blocks of {bytes_text(outcome.block_bytes)}"
    )


def _waiting(setting: Warehouse) -> str:
    return (
        f"{setting.requests:,} requests wait, with prompts of {setting.prompt_tokens:,} tokens and "
        f"{setting.new_tokens:,} to generate; up to {setting.max_length:,} would be allowed. We "
        f"look when those that are in have {setting.mean_tokens:,} tokens on average."
    )


def _refused(refusal: Refusal) -> str:
    kept = f", {refusal.held_back:,} kept for growth" if refusal.held_back else ""
    return (
        f"The next one is out of memory: it needs {refusal.needed:,} blocks, "
        f"{refusal.free:,} are free{kept}."
    )


def _drawn(outcome: WarehouseOutcome, pair: Sequence[Shelves]) -> Iterator[Text]:
    """A line for each reservation's worth of the pool."""
    cells = outcome.setting.cells
    size = cells * outcome.blocks_per_cell * outcome.block_bytes
    for number, first in enumerate(range(0, len(pair[0].owners), cells)):
        line = Text(f"{number * size / GIB:>3g} GiB ")
        for shelves in pair:
            line.append("│")
            for place in range(first, min(first + cells, len(shelves.owners))):
                _draw(line, shelves.owners[place], shelves.kinds[place])
            line.append("│  ")
        line.rstrip()
        yield line


def _draw(line: Text, owner: int, kind: str) -> None:
    if not owner:
        line.append(_FREE, "dim")
        return
    name = _NAMES[(owner - 1) % len(_NAMES)]
    colour = DARK[f"owner-{(owner - 1) % OWNERS}"]
    line.append(name if kind in ("used", "shared") else _HELD, colour)


def _rows(pair: Sequence[Shelves]) -> list[list[str]]:
    rows = []
    for name in ("used", "reserved", "internal", "free"):
        rows.append([LEDGER_NAMES[name]])
        for shelves in pair:
            size = shelves.ledger.to_dict()[name]
            rows[-1].append(f"{bytes_text(size)} {size / shelves.ledger.total:6.1%}")
    idle = (bytes_text(s.ledger.total - s.ledger.used) for s in pair)
    return [
        *rows,
        ["idle: all but what is used", *idle],
        ["most at once, whole backlog", *(f"{s.peak:,}" for s in pair)],
        ["preempted", *(f"{s.preemptions:,}" for s in pair)],
        ["steps until all are done", *(f"{s.steps:,}" for s in pair)],
    ]
