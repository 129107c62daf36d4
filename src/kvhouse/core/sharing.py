"""Prefix sharing: which blocks of a request are in the pool already, and which become known."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.core.cached_pool import CachedPool, Content
from kvhouse.core.request import Request
from kvhouse.errors import UnsupportedModel
from kvhouse.layout import KVLayout


@dataclass(frozen=True, slots=True)
class Match:
    """What of a request is in the pool already.

    Attributes:
        tokens: Leading tokens that need not be computed; whole blocks.
        firsts: For each group, the index of the first block that is found.
        blocks: For each group, the blocks found, up to ``tokens``: all of them, or those that a
            window still needs.
        free: How many of these nobody holds.
    """

    tokens: int
    firsts: tuple[int, ...]
    blocks: tuple[list[int], ...]
    free: int


NO_MATCH = Match(0, (), (), 0)


class PrefixSharing:
    """Looks prefixes up in a pool, and tells it what its blocks hold.

    Args:
        layout: The groups; blocks of all of them must hold the same number of tokens.
        blocks: Blocks in the pool.

    Raises:
        UnsupportedModel: The model keeps what cannot be taken up in the middle: a state, another
            input, or entries that stand for several tokens.
    """

    def __init__(self, layout: KVLayout, blocks: int) -> None:
        refuse_unshareable(layout)
        self.layout = layout
        self.pool = CachedPool(blocks, len(layout.groups))

    def match(self, request: Request) -> Match:
        """The longest prefix of ``request`` for which every group has all that it needs.

        At least one token is left to be computed, since its logits are wanted.
        """
        blocks = self._longest(request)
        if not blocks:
            return NO_MATCH
        firsts, found = [], []
        for number, group in enumerate(self.layout.groups):
            first = group.first_block(blocks * group.block_size)
            ids = [self._find(request, number, index) for index in range(first, blocks)]
            firsts.append(first)
            found.append([block for block in ids if block is not None])
        free = sum(self.pool.is_free(block) for ids in found for block in ids)
        return Match(blocks * self.layout.block_size, tuple(firsts), tuple(found), free)

    def take_up(self, match: Match) -> None:
        """Hold the blocks of a match for one more request."""
        for ids in match.blocks:
            self.pool.share(ids)

    def seal(self, request: Request, group: int, index: int, block: int) -> None:
        """Make a block that was filled to the last token known, where its content has a key."""
        key = request.keys.key(index) if request.keys else None
        if key is not None:
            self.pool.seal(block, Content(group, key))

    def _longest(self, request: Request) -> int:
        """Blocks of the longest prefix; from a guess downwards until no group lacks anything."""
        if request.keys is None:
            return 0
        blocks = (request.known - 1) // self.layout.block_size
        groups = list(enumerate(self.layout.groups))
        for number, group in groups:
            if not group.reach.tokens:
                found = (self._find(request, number, index) for index in range(blocks))
                blocks = next((i for i, block in enumerate(found) if block is None), blocks)
        while blocks:
            lacking = max(self._lacking(request, number, blocks) for number, _ in groups)
            if lacking < 0:
                break
            blocks = lacking
        return blocks

    def _lacking(self, request: Request, number: int, blocks: int) -> int:
        """Index of the last block that a group needs after a prefix and has not; -1 for none."""
        group = self.layout.groups[number]
        if not group.reach.tokens:
            return -1
        needed = range(blocks - 1, group.first_block(blocks * group.block_size) - 1, -1)
        return next((i for i in needed if self._find(request, number, i) is None), -1)

    def _find(self, request: Request, group: int, index: int) -> int | None:
        key = request.keys.key(index) if request.keys else None
        return None if key is None else self.pool.find(Content(group, key))


def refuse_unshareable(layout: KVLayout) -> None:
    """Refuse a layout whose prefixes cannot be shared.

    Raises:
        UnsupportedModel: With the reason.
    """
    reason = None
    if layout.slot_bytes:
        reason = "its state is one sum over all tokens and is not kept for each prefix"
    elif any(group.reach.kind == "another" for group in layout.groups):
        reason = "it attends to another input, which the tokens do not tell apart"
    elif any(group.stride > 1 for group in layout.groups):
        reason = "it keeps entries that stand for several tokens"
    if reason:
        raise UnsupportedModel(f"prefixes of this model cannot be shared: {reason}")
