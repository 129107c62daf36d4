"""A pool whose blocks can be shared, and found again after their request has gone."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
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
        #: What blocks hold: the key, and the group that it was sealed for.
        self._keys: dict[int, Hashable] = {}
        self._groups = array("H", bytes(2 * blocks))
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
        return list(self._keys)

    def shared_ids(self) -> list[int]:
        """The id of every block that several requests hold."""
        return list(self._several)

    def content(self, block: int) -> Content | None:
        """What a block is indexed as, if it is."""
        key = self._keys.get(block)
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
            oldest = self._cached.popitem
            evicted = [oldest(last=False)[0] for _ in range(count - len(taken))]
            self._forget(evicted)
            taken += evicted
        return taken

    def _forget(self, blocks: list[int]) -> None:
        keys, groups, index = self._keys, self._groups, self._index
        for block in blocks:
            group, key = groups[block], keys.pop(block)
            del index[group][key]
            if self._on_evicted:
                self._on_evicted(block, Content(group, key))

    def give_back(self, ids: Sequence[int]) -> None:
        """Drop one holder of each, tail first, so that a request's head is forgotten last."""
        several, keys, cached, empty = self._several, self._keys, self._cached, self._empty
        for block in ids[::-1]:
            if block in several:
                self._leave(block)
            elif block in keys:
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
        there = content.key in self._index[content.group] or block in self._keys
        self.seal_all(content.group, (content.key,), (block,))
        return not there

    def seal_all(self, group: int, keys: Sequence[Hashable], blocks: Sequence[int]) -> None:
        """``seal`` for many blocks, each with its key."""
        index, known = self._index[group], self._keys
        for key, block in zip(keys, blocks, strict=True):
            if key not in index and block not in known:
                index[key] = block
                known[block] = key
                self._groups[block] = group

    def forget(self, content: Content) -> None:
        """Make a content unfindable, if it is there; no more than one may hold its block."""
        block = self._index[content.group].pop(content.key, None)
        if block is None:
            return
        del self._keys[block]
        if block in self._cached:
            del self._cached[block]
            self._empty.append(block)
