"""The contiguous pool: a request's blocks must be one unbroken run of numbers."""

from __future__ import annotations

from bisect import bisect

from kvhouse.core.pool import Pool


class ExtentPool(Pool):
    """Hands out runs of consecutive blocks, and joins freed neighbours again.

    Args:
        blocks: Blocks in the pool.
        best: Take from the shortest free run that is long enough (best fit), the first of equal
            ones, and not from the first (first fit).
    """

    def __init__(self, blocks: int, *, best: bool = False) -> None:
        super().__init__(blocks)
        self._best = best
        self._starts = [0] if blocks else []
        self._lengths = [blocks] if blocks else []

    def free_runs(self) -> list[tuple[int, int]]:
        """The free runs as ``(first block, number of blocks)``, in ascending order."""
        return list(zip(self._starts, self._lengths, strict=True))

    def free_ids(self) -> list[int]:
        """Every free block's id."""
        return [
            block for start, length in self.free_runs() for block in range(start, start + length)
        ]

    def take(self, count: int) -> list[int] | None:
        """Take a run of ``count`` consecutive blocks, or nothing and return None."""
        if not count:
            return []
        fitting = (index for index, length in enumerate(self._lengths) if length >= count)
        if self._best:
            index = min(fitting, key=self._lengths.__getitem__, default=None)
        else:
            index = next(fitting, None)
        return None if index is None else self._cut(index, count)

    def _cut(self, index: int, count: int) -> list[int]:
        start = self._starts[index]
        if self._lengths[index] == count:
            del self._starts[index], self._lengths[index]
        else:
            self._starts[index] += count
            self._lengths[index] -= count
        self.free_blocks -= count
        return list(range(start, start + count))

    def give_back(self, ids: list[int]) -> None:
        """Free one run that ``take`` gave, in any order, and join it with those it touches."""
        if not ids:
            return
        start, length = min(ids), len(ids)
        self.free_blocks += length
        after = bisect(self._starts, start)
        if after < len(self._starts) and self._starts[after] == start + length:
            length += self._lengths[after]
            del self._starts[after], self._lengths[after]
        before = after - 1
        if before >= 0 and self._starts[before] + self._lengths[before] == start:
            self._lengths[before] += length
        else:
            self._starts.insert(after, start)
            self._lengths.insert(after, length)

    def unusable(self, count: int) -> int:
        """All free blocks where they are enough for ``count`` but no run of them is."""
        scattered = 0 < count <= self.free_blocks and count > max(self._lengths)
        return self.free_blocks if scattered else 0
