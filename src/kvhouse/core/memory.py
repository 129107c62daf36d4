"""Who holds which blocks: one pool, and for each request a block table per group of layers.

Tables, kernels and the scheduler are the same for all placement policies, so a comparison of
policies changes only how memory is handed out.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.core.blocks import BlockPool
from kvhouse.core.holding import GroupTable, Holding
from kvhouse.core.policy import (
    DEFAULT_WATERMARK,
    FIRST_FIT,
    PAGED,
    Placement,
    get_fit,
    get_policy,
)
from kvhouse.core.pools import Pool, make_pool
from kvhouse.core.request import Request
from kvhouse.core.sharing import NO_MATCH, Match, PrefixSharing
from kvhouse.core.step import BlockTable
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout, PoolSize

#: Most blocks of a pool, and most slots; at 16 tokens a block, 268 million tokens.
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


class KVMemory:
    """The pool and what the requests hold of it."""

    def __init__(
        self, placement: Placement, size: PoolSize, watermark: float, *, share: bool
    ) -> None:
        self.placement = placement
        self.layout: KVLayout = placement.layout
        self.size = size
        self.sharing: PrefixSharing | None = None
        if share:
            self.sharing = PrefixSharing(self.layout, size.blocks)
        self.pool: Pool = (
            self.sharing.pool
            if self.sharing
            else make_pool(placement.policy, size.blocks, placement.fit)
        )
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

    def tables(self, request: int, tokens: int) -> tuple[tuple[BlockTable, ...], tuple[int, ...]]:
        """For each group, the blocks that hold those of the first ``tokens`` tokens it keeps.

        Returns:
            The tables, and for each the index of its first block.
        """
        holding = self._holdings[request]
        # Blocks of every group end at multiples of the layout's block size.
        size = -(-tokens // self.layout.block_size)
        if holding.shown_for != size:
            tables, starts = [], []
            for table in holding.tables:
                held = table.group.end_block(tokens) - table.first
                tables.append(tuple(table.ids[:held]))
                starts.append(table.first)
            holding.shown = tuple(tables), tuple(starts)
            holding.shown_for = size
        return holding.shown

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

        What a prefix in the pool already holds is taken up, and counts as computed. The watermark
        does not count for a request that is ``alone``: nothing else could grow.
        """
        match = self.sharing.match(request) if self.sharing else NO_MATCH
        counts = self._counts_to_admit(request, match)
        needed = sum(counts)
        held_back = 0 if alone else self.held_back
        no_slot = self.layout.slot_bytes > 0 and not self.slots.free_blocks
        blocks = None
        if needed + match.free + held_back <= self.free_blocks and not no_slot:
            if self.sharing:
                self.sharing.take_up(match)
            blocks = self.pool.take(needed)
        if blocks is None:
            fragmented = self.pool.unusable(needed) > 0
            return Refusal(
                request.id, needed + match.free, self.free_blocks, held_back, fragmented, no_slot
            )
        tables = self._first_tables(match, counts, blocks)
        slots = self.slots.take(1) if self.layout.slot_bytes else None
        holding = Holding(tables, slots[0] if slots else None)
        holding.renew()
        self._holdings[request.id] = holding
        request.computed = match.tokens
        request.reused += match.tokens
        return None

    def _first_tables(
        self, match: Match, counts: list[int], blocks: list[int]
    ) -> tuple[GroupTable, ...]:
        """Deal what was taken at admission out to the groups, behind what was found."""
        tables, at = [], 0
        for number, count in enumerate(counts):
            first, found = (match.firsts[number], match.blocks[number]) if match.tokens else (0, [])
            group = self.layout.groups[number]
            tables.append(GroupTable(group, first, [*found, *blocks[at : at + count]]))
            at += count
        return tuple(tables)

    def _counts_to_admit(self, request: Request, match: Match) -> list[int]:
        """Blocks that each group takes from the pool, beside those of a shared prefix."""
        tokens = self.placement.tokens_to_admit(
            request.known, request.prompt_tokens, request.max_new_tokens
        )
        counts = []
        for number, group in enumerate(self.layout.groups):
            count = group.blocks_for(tokens, self.placement.in_flight)
            if match.tokens:
                ends = group.end_block(tokens) - match.tokens // group.block_size
                count = min(ends, count - len(match.blocks[number]))
            counts.append(count)
        return counts

    def grow(self, request: Request, tokens: int) -> bool:
        """Make room for ``tokens`` tokens in all, and let go of what is out of reach by then.

        Returns:
            False when the pool is dry; nothing was taken then.
        """
        holding = self._holdings[request.id]
        if tokens <= holding.room and request.computed < holding.passes:
            return True
        needed = 0
        missing: list[tuple[GroupTable, int]] = []
        for table in holding.tables:
            if table.group.reach.tokens:
                self._let_go(table, request)
            short = table.group.end_block(tokens) - table.end
            if short > 0:
                needed += short
                missing.append((table, short))
        blocks = self.pool.take(needed)
        if blocks is not None:
            at = 0
            for table, count in missing:
                table.ids += blocks[at : at + count]
                at += count
        holding.renew()
        return blocks is not None

    def _let_go(self, table: GroupTable, request: Request) -> None:
        """Take blocks out of a table that the next token cannot see any more.

        They serve the tokens to come, as far as these are known; a contiguous request keeps all
        it has, since its run cannot be given back in parts.
        """
        passed = table.group.first_block(request.computed) - table.first
        if passed <= 0:
            return
        freed, table.ids[:passed] = table.ids[:passed], []
        table.first += passed
        if self.policy != PAGED:
            table.ids.extend(freed)
            return
        reused = max(0, min(passed, table.group.end_block(request.known) - table.end))
        if self.sharing:  # others may hold these blocks, or come to want them
            self.pool.give_back(freed)
            table.ids.extend(self.pool.take(reused) or ())
        else:
            self.pool.give_back(freed[reused:])
            table.ids.extend(freed[:reused])

    def seal(self, request: Request, first: int, count: int) -> None:
        """Take note that tokens from ``first`` on were computed: full blocks can be shared."""
        if not self.sharing or not request.keys:
            return
        for number, table in enumerate(self._holdings[request.id].tables):
            size = self.layout.groups[number].block_size
            for index in range(first // size, (first + count) // size):
                self.sharing.seal(request, number, index, table.ids[index - table.first])

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
    share: bool = False,
    fit: str = FIRST_FIT,
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
        share: Whether requests share the blocks of equal prefixes; ``paged`` only.
        fit: How contiguous policies look for a run, one of ``FITS``.

    Raises:
        UnsupportedModel: Prefixes of this model cannot be shared.
        KvhouseError: The pool can hold nothing, or is too large, no such policy or fit, a policy
            that cannot share, or a watermark out of range.
    """
    size = PoolSize(size) if isinstance(size, int) else size
    layout.require(size)
    for count, what in ((size.blocks, "blocks"), (size.slots, "slots")):
        if count > MOST_BLOCKS:
            raise KvhouseError(
                f"a pool of {count:,} {what} is more than the {MOST_BLOCKS:,} that kvhouse "
                "tracks: give less KV memory or larger blocks"
            )
    placement = Placement(
        get_policy(policy), layout, max_length, in_flight or max_length, get_fit(fit)
    )
    if share and placement.policy != PAGED:
        raise KvhouseError(f"policy {placement.policy}: only paged memory can share prefixes")
    return KVMemory(placement, size, watermark, share=share)
