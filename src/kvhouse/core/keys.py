"""What a block holds, as a key: equal keys mean equal tokens with equal tokens before them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import sha256
from itertools import repeat, takewhile
from typing import Protocol

import numpy as np


class BlockKeys(Protocol):
    """The keys of one request's blocks."""

    def key(self, index: int) -> Hashable | None:
        """The key of block ``index``, full to the last token.

        None where it is not known; then that of no later block is.
        """
        ...

    def known(self, first: int, end: int) -> list[Hashable]:
        """The keys of the blocks from ``first`` to before ``end``, as far as they are known."""
        return list(takewhile(_is_known, map(self.key, range(first, end))))


class TokenKeys(BlockKeys):
    """Keys from token ids: each is a hash of the one before it and of the block's own tokens.

    The hash is cryptographic (SHA-256), because a collision would hand one request another's KV.
    Tags go into the first block's key, so two requests share nothing unless all their tags agree:
    the tenant's salt, the adapter, the image that the prompt begins with.

    Args:
        tokens: The request's known token ids; may grow, but what is there must not change.
        block_size: Tokens to a block.
        tags: Names and values that set requests apart.
    """

    def __init__(
        self, tokens: Sequence[int], block_size: int, tags: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._tokens = tokens
        self._block_size = block_size
        # Each text with its length, so that no two lists of tags give the same bytes.
        texts = [text.encode() for tag in sorted(tags) for text in tag]
        self._root = sha256(b"".join(b"%d:%b" % (len(text), text) for text in texts)).digest()
        self._keys: list[bytes] = []

    def key(self, index: int) -> bytes | None:
        """The key of block ``index``; None where not all its tokens are known."""
        size = self._block_size
        while len(self._keys) <= index:
            at = len(self._keys) * size
            if len(self._tokens) < at + size:
                return None
            parent = self._keys[-1] if self._keys else self._root
            ids = np.asarray(self._tokens[at : at + size], dtype="<i8").tobytes()
            self._keys.append(sha256(parent + ids).digest())
        return self._keys[index]


class OwnKeys(BlockKeys):
    """Keys of one request's blocks for itself alone, where no other keys say what they hold.

    With them a request that lost its memory finds again what it had computed.

    Args:
        request: The request's id.
        shared: Keys that others may have too; they come first.
    """

    def __init__(self, request: int, shared: BlockKeys | None = None) -> None:
        self._request = request
        self._shared = shared

    def key(self, index: int) -> Hashable:
        """The shared key of block ``index``, or its own."""
        key = self._shared.key(index) if self._shared else None
        return self.own(index) if key is None else key

    def known(self, first: int, end: int) -> list[Hashable]:
        """The shared keys as far as they are known, then its own."""
        keys = self._shared.known(first, end) if self._shared else []
        keys.extend(zip(repeat(_OWN), repeat(self._request), range(first + len(keys), end)))
        return keys

    def own(self, index: int) -> Hashable:
        """The key that no other request has."""
        return _OWN, self._request, index


#: What a request's own keys begin with.
_OWN = "own"


def _is_known(key: Hashable | None) -> bool:
    return key is not None
