"""A pool whose blocks can be shared, and found again after their request has gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple


class Content(NamedTuple):
    """What a sealed block holds: which group's layers, and the key of its tokens."""

    group: int
    key: Hashable


class CachedPool:
    """Blocks with reference counts and an index of their contents.

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
        self.blocks = blocks
        self._on_evicted = on_evicted
        #: Holders of each block.
        self.references = [0] * blocks
        #: For each group, the blocks with several holders, and those holders less one each.
        self.shared_blocks = [0] * groups
        self.saved_blocks = [0] * groups
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._contents: dict[int, Content] = {}
        self._index: dict[Content, int] = {}
        self._cached = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, those with content included."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks that nobody holds and whose content can still be found."""
        return self._cached

    @property
    def largest(self) -> int:
        """The most blocks that one ``take`` could give if nobody held any."""
        return self.blocks

    def free_ids(self) -> list[int]:
        """Every free block's id, the next to be taken first."""
        return list(self._free)

    def content_ids(self) -> list[int]:
        """The id of every block whose content can be found, held or free."""
        return list(self._contents)

    def content(self, block: int) -> Content | None:
        """What a block is indexed as, if it is."""
        return self._contents.get(block)

    def find(self, content: Content) -> int | None:
        """The block with that content, held or free."""
        return self._index.get(content)

    def is_free(self, block: int) -> bool:
        """Whether nobody holds a block."""
        return not self.references[block]

    def share(self, blocks: Sequence[int]) -> None:
        """Add a holder to blocks that ``find`` gave."""
        for block in blocks:
            if not self.references[block]:
                del self._free[block]
                self._cached -= 1
            self._count(block, 1)

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` free blocks and forget their contents, or none and return None."""
        if count > len(self._free):
            return None
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.references[block] = 1
            content = self._contents.pop(block, None)
            if content is not None:
                del self._index[content]
                self._cached -= 1
                if self._on_evicted:
                    self._on_evicted(block, content)
        return taken

    def give_back(self, ids: Sequence[int]) -> None:
        """Drop one holder of each, tail first, so that a request's head is forgotten last."""
        for block in reversed(ids):
            self._count(block, -1)
            if self.references[block]:
                continue
            self._free[block] = None
            if block in self._contents:
                self._cached += 1
            else:
                self._free.move_to_end(block, last=False)

    def seal(self, block: int, content: Content) -> bool:
        """Index a full block; where the content is there already, the older block stays.

        Returns:
            Whether the block is what was indexed.
        """
        if content in self._index or block in self._contents:
            return False
        self._index[content] = block
        self._contents[block] = content
        return True

    def forget(self, content: Content) -> None:
        """Make a content unfindable, if it is there; no more than one may hold its block."""
        block = self._index.pop(content, None)
        if block is None:
            return
        del self._contents[block]
        if not self.references[block]:
            self._cached -= 1
            self._free.move_to_end(block, last=False)

    def unusable(self, count: int) -> int:
        """None: enough free blocks can always be given, wherever they lie."""
        del count
        return 0

    def _count(self, block: int, change: int) -> None:
        before = self.references[block]
        after = self.references[block] = before + change
        if before > 1 or after > 1:
            group = self._contents[block].group
            self.shared_blocks[group] += (after > 1) - (before > 1)
            self.saved_blocks[group] += max(0, after - 1) - max(0, before - 1)
