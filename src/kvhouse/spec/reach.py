"""Which tokens of a request a layer keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Reach:
    """Which tokens of a request a layer keeps.

    ``all`` of them; those of the last ``tokens`` (``window``); those of the chunk of ``tokens``
    that the last one lies in (``chunk``); all of ``another`` input; or, at most ``tokens`` of them,
    in a place of fixed size (``fixed``).
    """

    kind: Literal["all", "window", "chunk", "another", "fixed"] = "all"
    tokens: int = 0

    def first(self, position: int) -> int:
        """The first position that the token at ``position`` still needs."""
        if self.kind == "window":
            return max(0, position + 1 - self.tokens)
        if self.kind == "chunk":
            return position - position % self.tokens
        return 0

    def last(self, position: int) -> int:
        """The last position that still needs the token at ``position``, where one lets it go."""
        if self.kind == "chunk":
            position -= position % self.tokens
        return position + self.tokens - 1


#: The reach of a layer that keeps every token.
ALL = Reach()
