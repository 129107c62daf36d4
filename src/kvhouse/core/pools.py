"""What every pool of block ids can do, and the pools that a policy takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvhouse.core.blocks import BlockPool
from kvhouse.core.buddies import BuddyPool
from kvhouse.core.extents import ExtentPool
from kvhouse.core.policy import BEST_FIT, BUDDY, FIRST_FIT, PAGED


class Pool(Protocol):
    """Free ids and how they are taken."""

    @property
    def free_blocks(self) -> int:
        """Number of ids that nobody holds."""
        ...

    @property
    def largest(self) -> int:
        """The most ids that one ``take`` could give if nobody held any."""
        ...

    def free_ids(self) -> list[int]:
        """Every free id."""
        ...

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` ids, or none at all and return None."""
        ...

    def give_back(self, ids: Sequence[int]) -> None:
        """Free ids that one ``take`` gave."""
        ...

    def unusable(self, count: int) -> int:
        """Free ids that are enough for ``count``, yet cannot be given as they lie."""
        ...


def make_pool(policy: str, blocks: int, fit: str = FIRST_FIT) -> Pool:
    """A pool of single blocks for ``paged``, of runs for the contiguous policies."""
    if policy == PAGED:
        return BlockPool(blocks)
    return BuddyPool(blocks) if fit == BUDDY else ExtentPool(blocks, best=fit == BEST_FIT)
