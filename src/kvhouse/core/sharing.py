"""Prefix sharing: which blocks of a request are there already, and which become known."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from kvhouse.core.cached_pool import CachedPool, Content
from kvhouse.core.keys import BlockKeys, OwnKeys
from kvhouse.core.match import NO_MATCH, Found, Match
from kvhouse.core.request import Request
from kvhouse.core.step import StepResult
from kvhouse.core.tiers import Tiers
from kvhouse.errors import UnsupportedModel
from kvhouse.layout import KVLayout, LayerGroup

#: Where the block with a key is, if anywhere.
_Finder = Callable[[Hashable], int | Found | None]


class PrefixSharing:
    """Looks prefixes up in a pool and the tiers below it, and tells them what blocks hold.

    Args:
        layout: The groups; blocks of all of them must hold the same number of tokens.
        blocks: Blocks in the pool.
        tiers: What lies below it.
        share: Whether requests take each other's blocks up; otherwise only their own.

    Raises:
        UnsupportedModel: The model keeps what cannot be taken up in the middle: a state, another
            input, or entries that stand for several tokens.
    """

    def __init__(
        self, layout: KVLayout, blocks: int, tiers: Tiers | None = None, *, share: bool = True
    ) -> None:
        refuse_unshareable(layout, "prefixes" if share else "blocks")
        self.layout = layout
        self.tiers = tiers
        #: Whether requests take each other's blocks up.
        self.share = share
        #: Groups that need all tokens, and those that need the last ones.
        self._whole = [i for i, group in enumerate(layout.groups) if not group.reach.tokens]
        self._windowed = [i for i, group in enumerate(layout.groups) if group.reach.tokens]
        store = tiers.store if tiers and not tiers.write_through else None
        self.pool = CachedPool(blocks, len(layout.groups), store)
        #: Blocks that became known and were not stored yet.
        self._unstored: list[tuple[int, Content]] = []
        #: By whose keys a match was last looked for, over how many blocks, and these keys.
        self._asked: tuple[BlockKeys | None, int, list[Hashable]] = None, 0, []
        #: Contents of requests that have ended and that no other request can ask for.
        self._ended: list[Content] = []

    def keys_for(self, request: int, keys: BlockKeys | None) -> BlockKeys | None:
        """The keys by which a request's blocks are known here."""
        shared = keys if self.share else None
        return OwnKeys(request, shared) if self.tiers else shared

    def match(self, request: Request) -> Match:
        """The longest prefix of ``request`` for which every group has all that it needs.

        What a tier has beyond it is taken where loading pays. At least one token is left to be
        computed, since its logits are wanted.
        """
        keys = self._keys_of(request)
        best = self._match(keys, 0)
        if not self.tiers:
            return best
        count = len(self.tiers)
        declined = [0] * count
        for depth in range(1, count + 1):
            if not self._may_widen(keys, best, depth):
                continue
            wider = self._match(keys, depth)
            if wider.tokens == best.tokens:
                continue
            beyond = wider.beyond(best, count)
            if self.tiers.pays(best.tokens, wider.tokens - best.tokens, beyond):
                best, declined = replace(wider, reused=best.reused), [0] * count
            else:
                declined[depth - 1] = beyond[depth - 1]
        return replace(best, declined=tuple(declined))

    def take_up(self, match: Match) -> None:
        """Hold the blocks of a match for one more request, and what is to be loaded in place."""
        for places in match.blocks:
            self.pool.share([place for place in places if not isinstance(place, Found)])
        if self.tiers:
            for place in match.found:
                self.tiers.pin(place.tier, place.content)
            self.tiers.decline(match.declined)

    def load(self, match: Match, into: list[int]) -> tuple[list[int], ...]:
        """Load what a match found in tiers into as many blocks of the pool.

        They are known at once: a plan's loads come before its rows.

        Returns:
            For each group, the blocks of the match.
        """
        blocks = iter(into)
        return tuple([self._loaded(place, blocks) for place in places] for places in match.blocks)

    def seal(self, request: Request, group: int, first: int, blocks: list[int]) -> None:
        """Make blocks that were filled to the last token known, where their contents have keys.

        Args:
            request: Whose blocks they are.
            group: In which group of layers.
            first: Index of the first of them.
            blocks: Consecutive blocks.
        """
        if request.keys is None:
            return
        keys = request.keys.known(first, first + len(blocks))
        known = blocks[: len(keys)]
        if self.tiers is None or not self.tiers.write_through:
            self.pool.seal_all(group, keys, known)
            return
        for key, block in zip(keys, known, strict=True):
            content = Content(group, key)
            if self.pool.seal(block, content):
                self._unstored.append((block, content))

    def end(self, request: Request) -> None:
        """Note that a request has ended, and what only it could have taken up again with it."""
        if self.tiers and isinstance(request.keys, OwnKeys):
            for index in range(request.known // self.layout.block_size):
                key = request.keys.own(index)
                self._ended += [Content(group, key) for group in range(len(self.layout.groups))]

    def begin(self) -> None:
        """Before a step is planned, store what became known in the step before."""
        self._forget_ended()
        if self.tiers:
            for block, content in self._unstored:
                if self.pool.content(block) == content:
                    self.tiers.store(block, content)
        self._unstored.clear()

    def settle(self, result: StepResult) -> None:
        """After a step, when nobody holds a block whose load failed: take in what failed."""
        if self.tiers:
            for load, content in self.tiers.loads:
                if load.block in result.failed_loads:
                    self.pool.forget(content)
                elif load.tier and self.tiers.write_through:
                    self._unstored.append((load.block, content))
            self.tiers.settle(result)
        self._forget_ended()

    def _forget_ended(self) -> None:
        for content in self._ended:
            self.pool.forget(content)
            if self.tiers:
                self.tiers.drop(content)
        self._ended.clear()

    def _keys_of(self, request: Request) -> list[Hashable]:
        """The keys of the blocks that a request may find, kept for when it is refused."""
        if request.keys is None:
            return []
        blocks = (request.known - 1) // self.layout.block_size
        if self._asked[0] is not request.keys or self._asked[1] != blocks:
            self._asked = request.keys, blocks, request.keys.known(0, blocks)
        return self._asked[2]

    def _may_widen(self, keys: list[Hashable], best: Match, depth: int) -> bool:
        """Whether the uppermost tiers have the first block beyond a match that some group needs."""
        blocks = best.tokens // self.layout.block_size
        if blocks == len(keys):
            return False
        return all(self._finder(number, depth)(keys[blocks]) is not None for number in self._whole)

    def _match(self, keys: list[Hashable], depth: int) -> Match:
        """The longest prefix that the pool and the uppermost ``depth`` tiers have together."""
        finders = [self._finder(group, depth) for group in range(len(self.layout.groups))]
        blocks = self._longest(keys, finders)
        if not blocks:
            return NO_MATCH
        firsts, found = [], []
        free = loads = 0
        for number, find in enumerate(finders):
            group = self.layout.groups[number]
            first = group.first_block(blocks * group.block_size)
            places = [place for place in map(find, keys[first:blocks]) if place is not None]
            for place in places:
                if isinstance(place, Found):
                    loads += 1
                else:
                    free += self.pool.is_free(place)
            firsts.append(first)
            found.append(places)
        tokens = blocks * self.layout.block_size
        reused = 0 if depth else tokens
        return Match(tokens, tuple(firsts), tuple(found), free, loads, reused)

    def _longest(self, keys: list[Hashable], finders: list[_Finder]) -> int:
        """Blocks of the longest prefix; from a guess downwards until no group lacks anything."""
        blocks = len(keys)
        for number in self._whole:
            find = finders[number]
            for place, key in enumerate(keys):
                if place == blocks or find(key) is None:
                    blocks = place
                    break
        while blocks and self._windowed:
            lacking = max(
                _lacking(self.layout.groups[number], finders[number], keys[:blocks])
                for number in self._windowed
            )
            if lacking < 0:
                break
            blocks = lacking
        return blocks

    def _finder(self, group: int, depth: int) -> _Finder:
        """Says where a block of a group is: in the pool, or in one of the uppermost tiers."""
        in_pool, tiers = self.pool.finder(group), self.tiers
        if not depth or not tiers:
            return in_pool

        def find(key: Hashable) -> int | Found | None:
            block = in_pool(key)
            if block is not None:
                return block
            content = Content(group, key)
            tier = tiers.find(content, depth)
            return None if tier is None else Found(content, tier)

        return find

    def _loaded(self, place: int | Found, blocks: Iterator[int]) -> int:
        """A block of the pool that has, or will have, what was found."""
        if not isinstance(place, Found):
            return place
        block = next(blocks)
        self.pool.seal(block, place.content)
        if self.tiers:
            self.tiers.load(place.tier, place.content, block)
        return block


def _lacking(group: LayerGroup, find: _Finder, keys: list[Hashable]) -> int:
    """Index of the last block that a group needs after a prefix and has not; -1 for none."""
    blocks = len(keys)
    needed = range(blocks - 1, group.first_block(blocks * group.block_size) - 1, -1)
    return next((i for i in needed if find(keys[i]) is None), -1)


def refuse_unshareable(layout: KVLayout, what: str = "prefixes") -> None:
    """Refuse a layout whose prefixes cannot be shared, or whose blocks cannot be stored.

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
        done = "shared" if what == "prefixes" else "taken up again from a tier"
        raise UnsupportedModel(f"{what} of this model cannot be {done}: {reason}")
