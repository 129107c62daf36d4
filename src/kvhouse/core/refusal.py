"""Why a request must wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Refusal:
    """Why the request at the head of the queue got no memory.

    Attributes:
        request: Its id.
        needed: Blocks that it asked for.
        free: Blocks that nobody holds.
        held_back: Free blocks that the watermark keeps.
        fragmented: Whether enough blocks are free, but not in one run.
        no_slot: Whether no slot for its state is free.
    """

    request: int
    needed: int
    free: int
    held_back: int
    fragmented: bool
    no_slot: bool = False

    @property
    def reason_may_change(self) -> bool:
        """Whether it would be refused for another reason if fewer blocks were free."""
        return not self.no_slot and not self.fragmented and self.needed <= self.free
