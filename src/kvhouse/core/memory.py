"""Who holds which blocks: the placement policies over one kind of block id.

A placement policy decides how many blocks a request takes and which. Tables, kernels and the
scheduler are the same for all of them, so a comparison of policies changes only how memory is
handed out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from kvhouse.core.blocks import BlockPool
from kvhouse.core.extents import ExtentPool
from kvhouse.core.step import BlockTable
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout

#: Share of the pool that admission leaves free so that running requests can grow.
DEFAULT_WATERMARK = 0.05

#: Largest pool; at 16 tokens a block, 268 million tokens.
MOST_BLOCKS = 2**24


class Pool(Protocol):
    """Free block ids and how they are taken."""

    @property
    def free_blocks(self) -> int:
        """Number of blocks that nobody holds."""
        ...

    def free_ids(self) -> list[int]:
        """Every free block's id."""
        ...

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` blocks, or none at all and return None."""
        ...

    def give_back(self, ids: Sequence[int]) -> None:
        """Free blocks that one ``take`` gave."""
        ...

    def unusable(self, count: int) -> int:
        """Free blocks that are enough for ``count``, yet cannot be given as they lie."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the request at the head of the queue got no memory.

    Attributes:
        request: Its id.
        needed: Blocks that it asked for.
        free: Blocks that nobody holds.
        held_back: Free blocks that the watermark keeps.
        fragmented: Whether enough blocks are free, but not in one run.
    """

    request: int
    needed: int
    free: int
    held_back: int
    fragmented: bool


class KVMemory(ABC):
    """The pool and the block tables of the requests that hold part of it."""

    policy: ClassVar[str]

    def __init__(self, layout: KVLayout, blocks: int, pool: Pool, held_back: int) -> None:
        self.layout = layout
        self.total_blocks = blocks
        self.pool = pool
        #: Blocks that an admission must leave free while others run.
        self.held_back = held_back
        self._tables: dict[int, list[int]] = {}

    @property
    def total_bytes(self) -> int:
        """Bytes of the pool."""
        return self.total_blocks * self.layout.block_bytes

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.pool.free_blocks

    @property
    def holders(self) -> tuple[int, ...]:
        """Ids of the requests that hold blocks."""
        return tuple(self._tables)

    def table(self, request: int) -> list[int]:
        """The blocks of a request, in the order of its tokens."""
        return self._tables[request]

    def tables(self, request: int, tokens: int) -> tuple[BlockTable, ...]:
        """For each layer group, the blocks that hold the first ``tokens`` tokens."""
        return (tuple(self._tables[request][: self.layout.blocks_for(tokens)]),)

    @abstractmethod
    def blocks_to_admit(self, tokens: int) -> int:
        """Blocks that a request with ``tokens`` known tokens takes when it is admitted."""

    def admit(self, request: int, tokens: int, *, alone: bool) -> Refusal | None:
        """Give a request its first blocks; a refusal changes nothing.

        The watermark does not count for a request that is ``alone``: nothing else could grow.
        """
        needed = self.blocks_to_admit(tokens)
        held_back = 0 if alone else self.held_back
        blocks = None
        if needed + held_back <= self.free_blocks:
            blocks = self.pool.take(needed)
        if blocks is None:
            fragmented = self.pool.unusable(needed) > 0
            return Refusal(request, needed, self.free_blocks, held_back, fragmented)
        self._tables[request] = blocks
        return None

    def grow(self, request: int, tokens: int) -> bool:
        """Make room for ``tokens`` tokens in all; False, and no change, when the pool is dry."""
        table = self._tables[request]
        missing = self.layout.blocks_for(tokens) - len(table)
        if missing <= 0:
            return True
        blocks = self.pool.take(missing)
        if blocks is None:
            return False
        table.extend(blocks)
        return True

    def release(self, request: int) -> None:
        """Free everything that a request holds."""
        self.pool.give_back(self._tables.pop(request))


class PagedMemory(KVMemory):
    """Blocks as tokens need them, wherever they lie (Kwon et al. 2023, arXiv 2309.06180)."""

    policy = "paged"

    def __init__(self, layout: KVLayout, blocks: int, watermark: float) -> None:
        super().__init__(layout, blocks, BlockPool(blocks), watermark_blocks(blocks, watermark))

    def blocks_to_admit(self, tokens: int) -> int:
        """All known tokens at once, so that a prefill, once begun, never waits for memory."""
        return self.layout.blocks_for(tokens)


class ContiguousMemory(KVMemory):
    """One run of blocks for the longest length allowed, reserved before the first token.

    Nothing grows after admission, so there is no watermark.
    """

    policy = "contiguous"

    def __init__(self, layout: KVLayout, blocks: int, max_length: int) -> None:
        super().__init__(layout, blocks, ExtentPool(blocks), held_back=0)
        self._reservation = layout.blocks_for(max_length)

    def blocks_to_admit(self, tokens: int) -> int:
        """The same for every request: ``max_length`` tokens."""
        del tokens
        return self._reservation


def watermark_blocks(blocks: int, watermark: float) -> int:
    """Blocks that a watermark keeps free in a pool of ``blocks``.

    Raises:
        KvhouseError: The watermark is not a share in [0, 1).
    """
    if not 0 <= watermark < 1:
        raise KvhouseError(f"watermark {watermark}: give a share of the pool from 0 to below 1")
    return int(blocks * watermark)


#: Every placement policy, the older way first.
POLICIES = (ContiguousMemory.policy, PagedMemory.policy)


def make_memory(
    policy: str,
    layout: KVLayout,
    blocks: int,
    max_length: int,
    watermark: float = DEFAULT_WATERMARK,
) -> KVMemory:
    """Build the memory of a placement policy.

    Args:
        policy: ``paged`` or ``contiguous``.
        layout: Bytes and tokens of a block.
        blocks: Blocks in the pool.
        max_length: Longest request in tokens; what ``contiguous`` reserves for each.
        watermark: Share of the pool in [0, 1) that ``paged`` admissions leave free.

    Raises:
        KvhouseError: No block fits, too many do, no such policy, or a watermark out of range.
    """
    layout.require_blocks(blocks)
    if blocks > MOST_BLOCKS:
        raise KvhouseError(
            f"a pool of {blocks:,} blocks is more than the {MOST_BLOCKS:,} that kvhouse tracks: "
            "give less KV memory or larger blocks"
        )
    if policy == PagedMemory.policy:
        return PagedMemory(layout, blocks, watermark)
    if policy == ContiguousMemory.policy:
        return ContiguousMemory(layout, blocks, max_length)
    raise KvhouseError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
