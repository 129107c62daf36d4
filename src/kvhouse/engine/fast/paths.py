"""Which way each block of a model is computed, for people and for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Paths:
    """Which way a model is computed.

    Attributes:
        blocks: How many decoder blocks it has; 0 where that was not looked at.
        reason: Why it runs as transformers computes it; empty where the fast path computes it.
    """

    blocks: int = 0
    reason: str = ""

    @property
    def fast(self) -> int:
        """How many blocks the fast path computes."""
        return 0 if self.reason else self.blocks

    def line(self) -> str:
        """In words."""
        if self.reason:
            return f"unchanged: {self.reason}"
        return f"{self.fast} of {self.blocks} blocks fast; head and embedding fast"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"blocks": self.blocks, "fast": self.fast, "reason": self.reason}
