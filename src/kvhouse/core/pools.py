"""The pools that placement policies take their blocks from."""

from __future__ import annotations

from kvhouse.core.blocks import BlockPool
from kvhouse.core.buddies import BuddyPool
from kvhouse.core.extents import ExtentPool
from kvhouse.core.policy import BEST_FIT, BUDDY, FIRST_FIT, PAGED
from kvhouse.core.pool import Pool


def make_pool(policy: str, blocks: int, fit: str = FIRST_FIT) -> Pool:
    """A pool of single blocks for ``paged``, of runs for the contiguous policies."""
    if policy == PAGED:
        return BlockPool(blocks)
    return BuddyPool(blocks) if fit == BUDDY else ExtentPool(blocks, best=fit == BEST_FIT)
