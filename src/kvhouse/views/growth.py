"""How the cache of a request grows, and when it passes the weights, as bars."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from kvhouse.planner.growth import Growth
from kvhouse.units import bytes_text
from kvhouse.views.tables import say_whole, visible

#: Columns of the longest bar.
_WIDTH = 40
_FULL, _REST = "█", "▏▎▍▌▋▊▉"


def show_growth(console: Console, growth: Growth) -> None:
    """Print the cache against the tokens, then against the requests."""
    say = partial(say_whole, console)
    weights = bytes_text(growth.weight_bytes)
    name = visible(growth.model)
    say(
        f"{name} · KV {growth.kv_format}: one more token takes {growth.bytes_per_token:,} B", "bold"
    )
    say(f"One request, token by token; blocks of {growth.block_size} tokens (exact)\n")
    say(f"{'tokens':>9} {'needed':>10} {'in blocks':>10}", "bold")
    most = growth.points[-1].needed_bytes
    for point in growth.points:
        sizes = f"{bytes_text(point.needed_bytes):>10} {bytes_text(point.held_bytes):>10}"
        say(f"{point.tokens:>9,} {sizes}  {bar(point.needed_bytes / most)}".rstrip())
    say()
    say(f"The weights take {weights} ({growth.weights_basis}). {_crossover(growth)}")
    say(f"\nRequests of {growth.tokens:,} tokens at once, and │ the weights (exact)\n")
    say(f"{'requests':>9} {'KV':>10} {'of weights':>10}", "bold")
    most = max(growth.batches[-1].kv_bytes, growth.weight_bytes)
    mark = round(_WIDTH * growth.weight_bytes / most)
    for batch in growth.batches:
        share = f"{batch.kv_bytes / growth.weight_bytes:,.2f} x"
        line = list(bar(batch.kv_bytes / most).ljust(_WIDTH + 1))
        line[mark] = "│"
        drawn = "".join(line).rstrip()
        note = "  passes the weights" if batch.requests == growth.crossover_batch else ""
        say(f"{batch.requests:>9,} {bytes_text(batch.kv_bytes):>10} {share:>10}  {drawn}{note}")


def _crossover(growth: Growth) -> str:
    length = growth.crossover_length
    if length is None:
        return f"One request never passes them within {growth.tokens:,} tokens."
    return f"One request passes them at {length:,} tokens."


def bar(share: float) -> str:
    """A bar for a share of the longest, to an eighth of a column."""
    whole, part = divmod(round(8 * _WIDTH * share), 8)
    return _FULL * whole + (_REST[part - 1] if part else "")
