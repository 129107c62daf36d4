"""The paged pool: any free block will do."""

from __future__ import annotations

from kvhouse.core.pool import Pool


class BlockPool(Pool):
    """Hands out single blocks in a deterministic order; the last freed is the first reused."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self._free = list(range(blocks - 1, -1, -1))

    def free_ids(self) -> list[int]:
        """Every free block's id."""
        return list(self._free)

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` blocks, or none at all and return None."""
        left = self.free_blocks - count
        if left < 0:
            return None
        taken = self._free[: -count - 1 : -1]
        del self._free[left:]
        self.free_blocks = left
        return taken

    def give_back(self, ids: list[int]) -> None:
        """Free these blocks, tail first, so that a request's head is reused last of all."""
        self._free.extend(ids[::-1])
        self.free_blocks += len(ids)
