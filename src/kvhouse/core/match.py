"""What was found of a request before it is admitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvhouse.core.cached_pool import Content
from kvhouse.layout import LayerGroup


@dataclass(frozen=True, slots=True)
class Found:
    """A block's content in a tier.

    Attributes:
        content: What it is.
        tier: Number of the tier.
    """

    content: Content
    tier: int


@dataclass(slots=True, init=False)
class Match:
    """What of a request is there already, in the pool or in tiers below it.

    Attributes:
        tokens: Leading tokens that need not be computed; whole blocks.
        firsts: For each group, the index of the first block that is found.
        blocks: For each group, what was found, up to ``tokens``: of all blocks, or of those that
            a window still needs. A block of the pool by its id.
        free: How many blocks of the pool among these nobody holds.
        loads: How many blocks are to be loaded.
        reused: Tokens of these that the pool alone has.
        declined: For each tier, blocks found that are not worth loading.
    """

    tokens: int
    firsts: tuple[int, ...]
    blocks: tuple[list[int | Found], ...]
    free: int
    loads: int
    reused: int
    declined: tuple[int, ...]

    def __init__(
        self,
        tokens: int,
        firsts: tuple[int, ...],
        blocks: tuple[list[int | Found], ...],
        free: int,
        loads: int = 0,
        reused: int = 0,
        declined: tuple[int, ...] = (),
    ) -> None:
        self.tokens = tokens
        self.firsts = firsts
        self.blocks = blocks
        self.free = free
        self.loads = loads
        self.reused = reused
        self.declined = declined

    @property
    def found(self) -> list[Found]:
        """All that is to be loaded, group by group."""
        return [place for places in self.blocks for place in places if isinstance(place, Found)]

    def beyond(self, other: Match, tiers: int) -> tuple[int, ...]:
        """For each tier, the blocks that this match loads from it and ``other`` does not."""
        counts = Counter(place.tier for place in set(self.found) - set(other.found))
        return tuple(counts[tier] for tier in range(tiers))

    def beside(self, groups: Sequence[LayerGroup], tokens: int, in_flight: int) -> list[int]:
        """Blocks that each group takes beside what was found, to make room for ``tokens``."""
        if not self.tokens:
            return [group.blocks_for(tokens, in_flight) for group in groups]
        counts = []
        for number, group in enumerate(groups):
            count = group.blocks_for(tokens, in_flight)
            ends = group.end_block(tokens) - self.tokens // group.block_size
            counts.append(min(ends, count - len(self.blocks[number])))
        return counts


NO_MATCH = Match(0, (), (), 0)
