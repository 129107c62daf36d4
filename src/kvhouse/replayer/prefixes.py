"""What a trace says of its prompts' content, as keys of blocks that can be shared."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kvhouse.core.keys import BlockKeys
from kvhouse.replayer.trace_request import TraceRequest

#: Ids of so many tokens at most, of no tenant, and a place become one whole number.
_BITS = 15


@dataclass(frozen=True, slots=True)
class HashIdKeys(BlockKeys):
    """Keys from hash ids: each stands for a block of tokens and for everything before it.

    So a block of the pool is known by the id of its last token and its place within that id's
    block, whatever the two sizes are.

    Attributes:
        ids: The trace's ids, in order.
        id_tokens: Tokens behind one id.
        named_tokens: Tokens that the ids name, from the start on.
        block_size: Tokens to a block of the pool.
        tenant: Whose request it is.
    """

    ids: tuple[int, ...]
    id_tokens: int
    named_tokens: int
    block_size: int
    tenant: str | None

    def key(self, index: int) -> Hashable | None:
        """The key of block ``index``; None where the ids do not reach so far."""
        end = (index + 1) * self.block_size
        if end > self.named_tokens:
            return None
        named, place = divmod(end - 1, self.id_tokens)
        if self._plain:
            return self._first_place(named) + place
        return self.ids[named], place, self.id_tokens, self.tenant

    def known(self, first: int, end: int) -> list[Hashable]:
        """The keys of the blocks from ``first`` to before ``end``, as far as they are known."""
        size, id_tokens = self.block_size, self.id_tokens
        end = min(end, self.named_tokens // size)
        if not self._plain or id_tokens % size:
            return [self.key(index) for index in range(first, end)]
        if id_tokens == size:
            place = (id_tokens << _BITS) + size - 1
            return [(number << 2 * _BITS) + place for number in self.ids[first:end]]
        keys: list[Hashable] = []
        while first < end:
            named, place = divmod(first * size, id_tokens)
            base = self._first_place(named) - 1
            last = min(id_tokens, place + (end - first) * size)
            keys.extend(range(base + place + size, base + last + 1, size))
            first = (named + 1) * id_tokens // size
        return keys

    @property
    def _plain(self) -> bool:
        """Whether keys are whole numbers, which are much faster to look up than tuples."""
        return self.tenant is None and self.id_tokens < 1 << _BITS

    def _first_place(self, named: int) -> int:
        return ((self.ids[named] << _BITS) + self.id_tokens) << _BITS


@dataclass(frozen=True, slots=True)
class NamedPrefixKeys(BlockKeys):
    """Keys from the name of a text that prompts begin with.

    Attributes:
        prefix_id: The name.
        prefix_tokens: So many tokens of the prompt are the first of that text.
        block_size: Tokens to a block of the pool.
        tenant: Whose request it is.
    """

    prefix_id: str
    prefix_tokens: int
    block_size: int
    tenant: str | None

    def key(self, index: int) -> Hashable | None:
        """The key of block ``index``; None beyond the text."""
        if (index + 1) * self.block_size > self.prefix_tokens:
            return None
        return self.prefix_id, index, self.tenant


def keys_of(request: TraceRequest, block_size: int) -> BlockKeys | None:
    """What the blocks of a trace's request hold; None where the trace does not say.

    Hash ids go before a prefix id, since they name more. Nothing is shared between tenants.

    Args:
        request: The request.
        block_size: Tokens to a block of the pool.
    """
    if request.hash_ids:
        return HashIdKeys(
            request.hash_ids,
            request.hash_block,
            request.named_tokens,
            block_size,
            request.tenant,
        )
    if request.prefix_id is not None:
        return NamedPrefixKeys(request.prefix_id, request.prefix_tokens, block_size, request.tenant)
    return None
