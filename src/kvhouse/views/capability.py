"""How the engine runs a model, in words."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.text import Text

from kvhouse.spec.fields import show

_WORDS = {
    "packed": "runs packed: all requests of a step in one forward pass",
    "per_sequence": "runs per sequence: one forward pass for each request of a step",
    "refused": "is refused",
}


class Found(Protocol):
    """What ``engine.support`` found."""

    @property
    def kind(self) -> str:
        """``packed``, ``per_sequence`` or ``refused``."""
        ...

    @property
    def reason(self) -> str:
        """Why it is not packed without limits; empty where it is."""
        ...


def show_capability(console: Console, model: str, found: Found) -> None:
    """Print one sentence."""
    reason = f": {found.reason}" if found.reason and found.kind == "refused" else ""
    more = f" ({found.reason})" if found.reason and not reason else ""
    console.print(Text(f"{show(model)} {_WORDS[found.kind]}{reason}{more}"), soft_wrap=True)
