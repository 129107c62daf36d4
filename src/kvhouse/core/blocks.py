"""The paged pool: any free block will do."""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """Hands out single blocks in a deterministic order; the last freed is the first reused."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def free_blocks(self) -> int:
        """Number of blocks that nobody holds."""
        return len(self._free)

    @property
    def largest(self) -> int:
        """The most blocks that one ``take`` could give if nobody held any."""
        return self.blocks

    def free_ids(self) -> list[int]:
        """Every free block's id."""
        return list(self._free)

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` blocks, or none at all and return None."""
        left = len(self._free) - count
        if left < 0:
            return None
        taken = self._free[: -count - 1 : -1]
        del self._free[left:]
        return taken

    def give_back(self, ids: Sequence[int]) -> None:
        """Free these blocks, tail first, so that a request's head is reused last of all."""
        self._free.extend(reversed(ids))

    def unusable(self, count: int) -> int:
        """None: enough free blocks can always be given, wherever they lie."""
        del count
        return 0
