"""What a trace says of its prompts' content, as keys of blocks that can be shared."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kvhouse.core.keys import BlockKeys
from kvhouse.replayer.trace_request import TraceRequest

#: Ids of so many tokens at most, of no tenant, and a place become one whole number.
_BITS = 15


class HashIdKeys(BlockKeys):
    """Keys from hash ids: each stands for a block of tokens and for everything before it.

    So a block of the pool is known by the id of its last token and its place within that id's
    block, whatever the two sizes are.

    Args:
        ids: The trace's ids, in order.
        id_tokens: Tokens behind one id.
        named_tokens: Tokens that the ids name, from the start on.
        block_size: Tokens to a block of the pool.
        tenant: Whose request it is.
    """

    def __init__(
        self,
        ids: tuple[int, ...],
        id_tokens: int,
        named_tokens: int,
        block_size: int,
        tenant: str | None,
    ) -> None:
        self._ids = ids
        self._id_tokens = id_tokens
        self._count = named_tokens // block_size
        self._block_size = block_size
        self._tenant = tenant
        #: All of them, from the first time on that they are asked for.
        self._keys: list[Hashable] = []

    def key(self, index: int) -> Hashable | None:
        """The key of block ``index``; None where the ids do not reach so far."""
        return self._all()[index] if index < self._count else None

    def known(self, first: int, end: int) -> list[Hashable]:
        """The keys of the blocks from ``first`` to before ``end``, as far as they are known."""
        return self._all()[first:end]

    def _all(self) -> list[Hashable]:
        if not self._keys and self._count:
            # Whole numbers are much faster to look up than tuples.
            plain = self._tenant is None and self._id_tokens < 1 << _BITS
            self._keys = self._numbers() if plain else self._tuples()
        return self._keys

    def _numbers(self) -> list[Hashable]:
        size, id_tokens = self._block_size, self._id_tokens
        if id_tokens == size:
            last = (id_tokens << _BITS) + size - 1
            return [(number << 2 * _BITS) + last for number in self._ids[: self._count]]
        firsts = [((number << _BITS) + id_tokens) << _BITS for number in self._ids]
        if id_tokens % size == 0:
            within = range(size - 1, id_tokens, size)
            keys: list[Hashable] = [first + token for first in firsts for token in within]
            return keys[: self._count]
        last_tokens = range(size - 1, self._count * size, size)
        return [firsts[token // id_tokens] + token % id_tokens for token in last_tokens]

    def _tuples(self) -> list[Hashable]:
        size, id_tokens = self._block_size, self._id_tokens
        last_tokens = range(size - 1, self._count * size, size)
        return [
            (self._ids[token // id_tokens], token % id_tokens, id_tokens, self._tenant)
            for token in last_tokens
        ]


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
