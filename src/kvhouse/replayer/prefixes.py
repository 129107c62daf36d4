"""What a trace says of its prompts' content, as keys of blocks that can be shared."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kvhouse.core.keys import BlockKeys
from kvhouse.replayer.trace_request import TraceRequest


@dataclass(frozen=True, slots=True)
class HashIdKeys:
    """Keys from hash ids: each stands for a block of tokens and for everything before it.

    So a block of the pool is known by the id of its last token and its place within that id's
    block, whatever the two sizes are.

    Attributes:
        ids: The trace's ids, in order.
        id_tokens: Tokens behind one id.
        known: Tokens that the ids name, from the start on.
        block_size: Tokens to a block of the pool.
        tenant: Whose request it is.
    """

    ids: tuple[int, ...]
    id_tokens: int
    known: int
    block_size: int
    tenant: str | None

    def key(self, index: int) -> Hashable | None:
        """The key of block ``index``; None where the ids do not reach so far."""
        end = (index + 1) * self.block_size
        if end > self.known:
            return None
        named, place = divmod(end - 1, self.id_tokens)
        return self.ids[named], place, self.id_tokens, self.tenant


@dataclass(frozen=True, slots=True)
class NamedPrefixKeys:
    """Keys from the name of a text that prompts begin with.

    Attributes:
        prefix_id: The name.
        known: So many tokens of the prompt are the first of that text.
        block_size: Tokens to a block of the pool.
        tenant: Whose request it is.
    """

    prefix_id: str
    known: int
    block_size: int
    tenant: str | None

    def key(self, index: int) -> Hashable | None:
        """The key of block ``index``; None beyond the text."""
        if (index + 1) * self.block_size > self.known:
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
