"""Which way each block of a model is computed, for people and for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Paths:
    """Which way a model is computed.

    Attributes:
        blocks: How many decoder blocks it has; 0 where that was not looked at.
        compiled: Whether all of the fast path is compiled code; else it is computed in torch.
        note: Why it is not compiled.
        reason: Why it runs as transformers computes it; empty where the fast path computes it.
    """

    blocks: int = 0
    reason: str = ""
    compiled: bool = False
    note: str = ""

    @property
    def fast(self) -> int:
        """How many blocks the fast path computes."""
        return 0 if self.reason else self.blocks

    def line(self) -> str:
        """In words."""
        if self.reason:
            return f"unchanged: {self.reason}"
        how = "compiled" if self.compiled else f"in torch: {self.note}"
        return f"{self.fast} of {self.blocks} blocks fast; head and embedding fast ({how})"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "blocks": self.blocks,
            "fast": self.fast,
            "compiled": self.compiled,
            "reason": self.reason or self.note,
        }


#: Of a model that was not looked at.
UNCHANGED = Paths(reason="the fast path is off")
