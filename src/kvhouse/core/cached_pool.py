"""A pool whose blocks can be shared, and found again after their request has gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import NamedTuple

from kvhouse.core.pool import Pool


class Content(NamedTuple):
    """What a sealed block holds: which group's layers, and the key of its tokens."""

    group: int
    key: Hashable


class CachedPool(Pool):
    """Blocks that several requests may hold, and an index of their contents.

    A block whose content is known keeps it while it is free, until it is taken for something
    else: the least recently freed goes first. Blocks without content go before all others.

    Args:
        blocks: Number of blocks.
        groups: Number of groups of layers that take them.
        on_evicted: Told of each block that is taken for something else, and its content.
    """

    def __init__(
        self, blocks: int, groups: int, on_evicted: Callable[[int, Content], None] | None = None
    ) -> None:
        super().__init__(blocks)
        self._on_evicted = on_evicted
        #: For each group, the blocks with several holders, and those holders less one each.
        self.shared_blocks = [0] * groups
        self.saved_blocks = [0] * groups
        #: Free blocks without content, the next to be taken last, and those with, the next first.
        self._empty = list(range(blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        #: Holders of the blocks that have more than one.
        self._several: dict[int, int] = {}
        #: What each block holds: the key, if it has one, and the group that it was sealed for.
        self._keys: list[Hashable | None] = [None] * blocks
        self._groups = [0] * blocks
        self._index: list[dict[Hashable, int]] = [{} for _ in range(groups)]

    @property
    def cached_blocks(self) -> int:
        """Blocks that nobody holds and whose content can still be found."""
        return len(self._cached)

    def free_ids(self) -> list[int]:
        """Every free block's id, the next to be taken first."""
        return [*reversed(self._empty), *self._cached]

    def content_ids(self) -> list[int]:
        """The id of every block whose content can be found, held or free."""
        return [block for block, key in enumerate(self._keys) if key is not None]

    def shared_ids(self) -> list[int]:
        """The id of every block that several requests hold."""
        return list(self._several)

    def content(self, block: int) -> Content | None:
        """What a block is indexed as, if it is."""
        key = self._keys[block]
        return None if key is None else Content(self._groups[block], key)

    def find(self, content: Content) -> int | None:
        """The block with that content, held or free."""
        return self._index[content.group].get(content.key)

    def finder(self, group: int) -> Callable[[Hashable], int | None]:
        """``find`` for the keys of one group."""
        return self._index[group].get

    def is_free(self, block: int) -> bool:
        """Whether nobody holds a block that ``find`` gave."""
        return block in self._cached

    def holders(self, block: int) -> int:
        """How many hold a block that is not free."""
        return self._several.get(block, 1)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to blocks that ``find`` gave."""
        for block in blocks:
            if block in self._cached:
                del self._cached[block]
                self.free_blocks -= 1
                continue
            holders = self.holders(block)
            self._several[block] = holders + 1
            self.shared_blocks[self._groups[block]] += holders == 1
            self.saved_blocks[self._groups[block]] += 1

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` free blocks and forget their contents, or none and return None."""
        if count > self.free_blocks:
            return None
        self.free_blocks -= count
        split = max(0, len(self._empty) - count)
        taken = self._empty[split:]
        del self._empty[split:]
        taken.reverse()
        if len(taken) < count:
            taken += self._evict(count - len(taken))
        return taken

    def _evict(self, count: int) -> list[int]:
        """Forget what the least recently freed blocks hold, and return these."""
        cached, keys, groups, index = self._cached, self._keys, self._groups, self._index
        evicted = list(islice(cached, count))
        for block in evicted:
            del cached[block]
            group, key = groups[block], keys[block]
            del index[group][key]
            keys[block] = None
            if self._on_evicted:
                self._on_evicted(block, Content(group, key))
        return evicted

    def give_back(self, ids: list[int]) -> None:
        """Drop one holder of each, tail first, so that a request's head is forgotten last."""
        several, keys, cached, empty = self._several, self._keys, self._cached, self._empty
        for block in reversed(ids):
            if several and block in several:
                self._leave(block)
            elif keys[block] is not None:
                cached[block] = None
            else:
                empty.append(block)
        self.free_blocks = len(empty) + len(cached)

    def _leave(self, block: int) -> None:
        """Drop one of several holders."""
        holders = self._several.pop(block) - 1
        if holders > 1:
            self._several[block] = holders
        self.shared_blocks[self._groups[block]] -= holders == 1
        self.saved_blocks[self._groups[block]] -= 1

    def seal(self, block: int, content: Content) -> bool:
        """Index a full block; where the content is there already, the older block stays.

        Returns:
            Whether the block is what was indexed.
        """
        there = content.key in self._index[content.group] or self._keys[block] is not None
        self.seal_all(content.group, [content.key], [block])
        return not there

    def seal_all(self, group: int, keys: list[Hashable], blocks: list[int]) -> None:
        """``seal`` for many blocks, each with its key."""
        index, known, groups = self._index[group], self._keys, self._groups
        for place, key in enumerate(keys):
            block = blocks[place]
            if known[block] is None and index.setdefault(key, block) == block:
                known[block] = key
                groups[block] = group

    def forget(self, content: Content) -> None:
        """Make a content unfindable, if it is there; no more than one may hold its block."""
        block = self._index[content.group].pop(content.key, None)
        if block is None:
            return
        self._keys[block] = None
        if block in self._cached:
            del self._cached[block]
            self._empty.append(block)
