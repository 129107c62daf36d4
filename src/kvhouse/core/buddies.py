"""The buddy system: free runs have lengths of powers of two and begin at multiples of them."""

from __future__ import annotations

from kvhouse.core.pool import Pool


class BuddyPool(Pool):
    """Hands out runs of consecutive blocks by the buddy system (Knowlton 1965).

    A run is cut in halves until no half is long enough, and joined with its other half, its buddy,
    when both are free. Of a run that is longer than asked, which ``Placement`` never asks for where
    there is one group of layers, the tail stays free. Of several runs the lowest is taken.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.free_blocks = 0  # until they lie in runs
        #: First blocks of free runs, by the exponent of their length.
        self._runs: list[set[int]] = [set() for _ in range(blocks.bit_length())]
        self._free(0, blocks)

    @property
    def largest(self) -> int:
        """The largest power of two in the pool, since runs have no other lengths."""
        return 1 << self.blocks.bit_length() - 1 if self.blocks else 0

    def free_ids(self) -> list[int]:
        """Every free block's id."""
        return [
            block
            for exponent, starts in enumerate(self._runs)
            for start in starts
            for block in range(start, start + (1 << exponent))
        ]

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` consecutive blocks, or nothing and return None."""
        if not count:
            return []
        fitting = range((count - 1).bit_length(), len(self._runs))
        exponent = next((exponent for exponent in fitting if self._runs[exponent]), None)
        if exponent is None:
            return None
        start = min(self._runs[exponent])
        self._runs[exponent].remove(start)
        self.free_blocks -= 1 << exponent
        self._free(start + count, start + (1 << exponent))
        return list(range(start, start + count))

    def give_back(self, ids: list[int]) -> None:
        """Free one run that ``take`` gave, in any order, and join it with its buddies."""
        if ids:
            self._free(min(ids), max(ids) + 1)

    def unusable(self, count: int) -> int:
        """All free blocks where they are enough for ``count`` but no run of them is."""
        scattered = 0 < count <= self.free_blocks and not any(
            self._runs[(count - 1).bit_length() :]
        )
        return self.free_blocks if scattered else 0

    def _free(self, start: int, end: int) -> None:
        """Free the blocks from ``start`` to before ``end`` as the largest runs they make."""
        self.free_blocks += end - start
        while start < end:
            exponent = (end - start).bit_length() - 1
            if start:
                exponent = min(exponent, (start & -start).bit_length() - 1)
            self._join(start, exponent)
            start += 1 << exponent

    def _join(self, start: int, exponent: int) -> None:
        """Free one run, and make one of it and its buddy as long as that is free."""
        while exponent + 1 < len(self._runs) and start ^ (1 << exponent) in self._runs[exponent]:
            buddy = start ^ (1 << exponent)
            self._runs[exponent].remove(buddy)
            start, exponent = min(start, buddy), exponent + 1
        self._runs[exponent].add(start)
