"""Who holds which blocks: one pool, and for each request a block table per group of layers.

Tables, kernels and the scheduler are the same for all placement policies, so a comparison of
policies changes only how memory is handed out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvhouse.core.blocks import BlockPool
from kvhouse.core.policy import DEFAULT_WATERMARK, PAGED, Placement, get_policy
from kvhouse.core.pools import make_pool
from kvhouse.core.request import Request
from kvhouse.core.step import BlockTable
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout, LayerGroup, PoolSize

#: Largest pool; at 16 tokens a block, 268 million tokens.
MOST_BLOCKS = 2**24


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the request at the head of the queue got no memory.

    Attributes:
        request: Its id.
        needed: Blocks that it asked for.
        free: Blocks that nobody holds.
        held_back: Free blocks that the watermark keeps.
        fragmented: Whether enough blocks are free, but not in one run.
        no_slot: Whether no slot for its state is free.
    """

    request: int
    needed: int
    free: int
    held_back: int
    fragmented: bool
    no_slot: bool = False


@dataclass(slots=True)
class GroupTable:
    """A request's blocks in one group of layers.

    Attributes:
        first: Index of the first block that is still held; those before it were let go.
        ids: Block ids, in the order of the tokens.
    """

    first: int = 0
    ids: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Index after the last block."""
        return self.first + len(self.ids)


@dataclass(frozen=True, slots=True)
class Holding:
    """What one request holds: a table for each group, and a slot where there is a state."""

    tables: tuple[GroupTable, ...]
    slot: int | None

    def blocks(self) -> list[int]:
        """All its blocks, group by group."""
        return [block for table in self.tables for block in table.ids]


class KVMemory:
    """The pool and what the requests hold of it."""

    def __init__(self, placement: Placement, size: PoolSize, watermark: float) -> None:
        self.placement = placement
        self.layout: KVLayout = placement.layout
        self.size = size
        self.pool = make_pool(placement.policy, size.blocks)
        self.slots = BlockPool(size.slots)
        #: Blocks that an admission must leave free while others run.
        self.held_back = placement.held_back(size.blocks, watermark)
        self._holdings: dict[int, Holding] = {}

    @property
    def policy(self) -> str:
        """The placement policy."""
        return self.placement.policy

    @property
    def total_blocks(self) -> int:
        """Blocks in the pool."""
        return self.size.blocks

    @property
    def total_bytes(self) -> int:
        """Bytes of the pool."""
        return self.layout.pool_bytes(self.size)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.pool.free_blocks

    @property
    def holders(self) -> tuple[int, ...]:
        """Ids of the requests that hold memory."""
        return tuple(self._holdings)

    def holding(self, request: int) -> Holding:
        """What a request holds."""
        return self._holdings[request]

    def tables(self, request: int, tokens: int) -> tuple[BlockTable, ...]:
        """For each group, the blocks that hold those of the first ``tokens`` tokens it keeps."""
        pairs = zip(self.layout.groups, self._holdings[request].tables, strict=True)
        return tuple(tuple(t.ids[: group.end_block(tokens) - t.first]) for group, t in pairs)

    def blocks_to_admit(self, request: Request) -> int:
        """Blocks that a request takes when it is admitted now."""
        return self.placement.blocks_to_admit(
            request.known, request.prompt_tokens, request.max_new_tokens
        )

    def most_blocks(self, request: Request) -> int:
        """The most blocks that a request can ever need at once, preempted ones included."""
        return self.placement.blocks_to_admit(
            request.most_slots, request.prompt_tokens, request.max_new_tokens
        )

    def admit(self, request: Request, *, alone: bool) -> Refusal | None:
        """Give a request its first blocks and its slot; a refusal changes nothing.

        The watermark does not count for a request that is ``alone``: nothing else could grow.
        """
        needed = self.blocks_to_admit(request)
        held_back = 0 if alone else self.held_back
        no_slot = self.layout.slot_bytes > 0 and not self.slots.free_blocks
        blocks = None
        if needed + held_back <= self.free_blocks and not no_slot:
            blocks = self.pool.take(needed)
        if blocks is None:
            fragmented = self.pool.unusable(needed) > 0
            return Refusal(request.id, needed, self.free_blocks, held_back, fragmented, no_slot)
        slot = self.slots.take(1) if self.layout.slot_bytes else None
        self._holdings[request.id] = Holding(
            self._split(request, blocks), slot[0] if slot else None
        )
        return None

    def _split(self, request: Request, blocks: list[int]) -> tuple[GroupTable, ...]:
        """Cut what was taken at admission into a table for each group."""
        tokens = self.placement.tokens_to_admit(
            request.known, request.prompt_tokens, request.max_new_tokens
        )
        tables, at = [], 0
        for group in self.layout.groups:
            count = group.blocks_for(tokens, self.placement.in_flight)
            tables.append(GroupTable(0, blocks[at : at + count]))
            at += count
        return tuple(tables)

    def grow(self, request: Request, tokens: int) -> bool:
        """Make room for ``tokens`` tokens in all, and let go of what is out of reach by then.

        Returns:
            False when the pool is dry; nothing was taken then.
        """
        missing: list[tuple[GroupTable, int]] = []
        for group, table in zip(self.layout.groups, self._holdings[request.id].tables, strict=True):
            if group.reach.tokens:
                self._let_go(group, table, request)
            short = group.end_block(tokens) - table.end
            if short > 0:
                missing.append((table, short))
        if not missing:
            return True
        blocks = self.pool.take(sum(count for _, count in missing))
        if blocks is None:
            return False
        for table, count in missing:
            table.ids.extend(blocks[:count])
            del blocks[:count]
        return True

    def _let_go(self, group: LayerGroup, table: GroupTable, request: Request) -> None:
        """Take blocks out of a table that the next token cannot see any more.

        They serve the tokens to come, as far as these are known; a contiguous request keeps all
        it has, since its run cannot be given back in parts.
        """
        passed = group.first_block(request.computed) - table.first
        if passed <= 0:
            return
        freed, table.ids[:passed] = table.ids[:passed], []
        table.first += passed
        reused = len(freed)
        if self.policy == PAGED:
            reused = max(0, min(reused, group.end_block(request.known) - table.end))
            self.pool.give_back(freed[reused:])
        table.ids.extend(freed[:reused])

    def release(self, request: int) -> None:
        """Free everything that a request holds."""
        holding = self._holdings.pop(request)
        self.pool.give_back(holding.blocks())
        if holding.slot is not None:
            self.slots.give_back([holding.slot])


def make_memory(
    policy: str,
    layout: KVLayout,
    size: PoolSize | int,
    max_length: int,
    watermark: float = DEFAULT_WATERMARK,
    *,
    in_flight: int | None = None,
) -> KVMemory:
    """Build the memory of a placement policy.

    Args:
        policy: One of ``POLICIES``, or ``contiguous``.
        layout: Bytes and tokens of a block.
        size: The pool: blocks, and slots where the layout has them.
        max_length: Longest request in tokens; what ``contiguous-max`` reserves for each.
        watermark: Share of the pool in [0, 1) that ``paged`` admissions leave free.
        in_flight: The most tokens that one step computes for a request; by default
            ``max_length``.

    Raises:
        KvhouseError: The pool can hold nothing, or is too large, no such policy, or a watermark
            out of range.
    """
    size = PoolSize(size) if isinstance(size, int) else size
    layout.require(size)
    if size.blocks > MOST_BLOCKS:
        raise KvhouseError(
            f"a pool of {size.blocks:,} blocks is more than the {MOST_BLOCKS:,} that kvhouse "
            "tracks: give less KV memory or larger blocks"
        )
    placement = Placement(get_policy(policy), layout, max_length, in_flight or max_length)
    return KVMemory(placement, size, watermark)
