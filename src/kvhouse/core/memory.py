"""Who holds which blocks: one pool, and for each request a block table per group of layers.

Tables, kernels and the scheduler are the same for all placement policies, so a comparison of
policies changes only how memory is handed out.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvhouse.core.blocks import BlockPool
from kvhouse.core.holding import GroupTable, Holding, deal
from kvhouse.core.keys import BlockKeys
from kvhouse.core.match import NO_MATCH
from kvhouse.core.policy import (
    DEFAULT_WATERMARK,
    FIRST_FIT,
    PAGED,
    Placement,
    get_fit,
    get_policy,
)
from kvhouse.core.pool import Pool
from kvhouse.core.pools import make_pool
from kvhouse.core.refusal import Refusal
from kvhouse.core.request import Request
from kvhouse.core.sharing import PrefixSharing
from kvhouse.core.step import BlockTable, Move, StepResult, Transfer
from kvhouse.core.tier import TierConfig
from kvhouse.core.tiers import LoadRule, Tiers, always
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout, PoolSize

#: Most blocks of a pool, and most slots; at 16 tokens a block, 268 million tokens.
MOST_BLOCKS = 2**24


class KVMemory:
    """The pool and what the requests hold of it."""

    def __init__(
        self, placement: Placement, size: PoolSize, watermark: float, sharing: PrefixSharing | None
    ) -> None:
        self.placement = placement
        self.layout: KVLayout = placement.layout
        self.size = size
        self.sharing = sharing
        self.pool: Pool = (
            sharing.pool if sharing else make_pool(placement.policy, size.blocks, placement.fit)
        )
        self.slots = BlockPool(size.slots)
        #: Blocks that an admission must leave free while others run.
        self.held_back = placement.held_back(size.blocks, watermark)
        #: Whether the longest request allowed fits, so that no other can be too long.
        self.fits_all = (
            placement.policy == PAGED
            and self.layout.blocks_for(placement.max_length, placement.in_flight) <= size.blocks
        )
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
    def tiers(self) -> Tiers | None:
        """What lies below the pool."""
        return self.sharing.tiers if self.sharing else None

    @property
    def shares(self) -> bool:
        """Whether requests take up each other's blocks."""
        return self.sharing is not None and self.sharing.share

    def keys_for(self, request: int, keys: BlockKeys | None) -> BlockKeys | None:
        """The keys by which a request's blocks can be found here, from those it came with."""
        return self.sharing.keys_for(request, keys) if self.sharing else keys

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

        What is there of a prefix already, in the pool or in a tier that it pays to load from, is
        taken up and counts as computed. The watermark does not count for a request that is
        ``alone``: nothing else could grow.
        """
        match = self.sharing.match(request) if self.sharing else NO_MATCH
        tokens = self.placement.tokens_to_admit(
            request.known, request.prompt_tokens, request.max_new_tokens
        )
        groups, in_flight = self.layout.groups, self.placement.in_flight
        counts = match.beside(groups, tokens, in_flight)
        needed = sum(counts) + match.loads
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
        there: tuple[list[int], ...] = ()
        if self.sharing:
            there = self.sharing.load(match, blocks[: match.loads])
            blocks = blocks[match.loads :]
        tables = deal(groups, match.firsts, there, counts, blocks)
        slots = self.slots.take(1) if self.layout.slot_bytes else None
        loaded = match.tokens - match.reused
        slot = slots[0] if slots else None
        self._holdings[request.id] = Holding(tables, slot, match.reused, loaded)
        request.computed = match.tokens
        request.reused += match.reused
        request.loaded += loaded
        return None

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
            begin, end = first // size, (first + count) // size
            if begin < end:
                ids = table.ids[begin - table.first : end - table.first]
                self.sharing.seal(request, number, begin, ids)

    def give_up(self, request: Request) -> None:
        """Take an admission back whose loads failed, so that nothing of it counts."""
        holding = self._holdings[request.id]
        request.reused -= holding.reused
        request.loaded -= holding.loaded
        self.release(request.id)

    def end(self, request: Request) -> None:
        """Free what a request holds that has ended, and forget what only it could ask for."""
        self.release(request.id)
        if self.sharing:
            self.sharing.end(request)

    def begin_step(self) -> None:
        """Prepare for a step to be planned: what became known may have to be stored."""
        if self.sharing:
            self.sharing.begin()

    @property
    def transfers(self) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...], tuple[Move, ...]]:
        """The loads, stores and moves that the step being planned needs."""
        return self.tiers.transfers if self.tiers else ((), (), ())

    def end_step(self, result: StepResult) -> None:
        """Take in which transfers of a step failed, when nobody holds what was not loaded."""
        if self.sharing:
            self.sharing.settle(result)

    def release(self, request: int) -> None:
        """Free everything that a request holds; what others or it may take up stays known."""
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
    tiers: Sequence[TierConfig] = (),
    pays: LoadRule = always,
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
        tiers: Memory below the pool, the one next below it first; ``paged`` only.
        pays: Whether to load from them what could be computed again; by default always.
        fit: How contiguous policies look for a run, one of ``FITS``.

    Raises:
        UnsupportedModel: Prefixes of this model cannot be shared, or its blocks not be stored.
        KvhouseError: The pool or a tier can hold nothing, or is too large, no such policy or fit,
            a policy that can neither share nor store, or a watermark out of range.
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
    if tiers and placement.policy != PAGED:
        raise KvhouseError(
            f"policy {placement.policy}: only paged memory can have tiers below it, since a "
            "contiguous request is given its memory as one run and not block by block"
        )
    sharing = None
    if share or tiers:
        below = Tiers(tiers, layout, pays) if tiers else None
        sharing = PrefixSharing(layout, size.blocks, below, share=share)
    return KVMemory(placement, size, watermark, sharing)
