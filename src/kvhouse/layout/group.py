"""A group of layers that share one block table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from kvhouse.formats import KVFormat
from kvhouse.spec.layers import Layer
from kvhouse.spec.reach import Reach


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one reach: a block holds the same tokens for each of them.

    Attributes:
        layers: What the group's layers keep, in the model's order.
        reach: Which tokens they keep.
        format: How keys and values are stored.
        dtype: What the model computes in, and so keeps in that is not in ``format``.
        block_size: Tokens that a block stands for.
        stride: Tokens for which one entry is kept: 1, or more where entries are compressed.
        other_tokens: Tokens of another input, where ``reach`` says that they are kept.
    """

    layers: tuple[Layer, ...]
    reach: Reach
    format: KVFormat
    dtype: str
    block_size: int
    stride: int = 1
    other_tokens: int = 0

    @cached_property
    def entry_bytes(self) -> int:
        """Bytes that one entry, of ``stride`` tokens, takes in all layers of the group."""
        return sum(layer.token_bytes(self.format, self.dtype) for layer in self.layers)

    @property
    def layer_bytes(self) -> int:
        """Bytes of a block that the group's layers fill; a pool's block may be larger."""
        return self.block_size // self.stride * self.entry_bytes

    def bytes_of(self, tokens: int) -> int:
        """Bytes of the entries of ``tokens`` consecutive tokens from an entry's first on."""
        return tokens // self.stride * self.entry_bytes

    def kept_bytes(self, tokens: int) -> int:
        """Logical bytes for a request of ``tokens`` tokens, no block rounding counted."""
        if self.reach.kind == "another":
            return self.bytes_of(self.other_tokens)
        return self.bytes_of(min(tokens, self.reach.tokens or tokens))

    def first_block(self, position: int) -> int:
        """Index of the first block that the token at ``position`` still needs."""
        return self.reach.first(position) // self.block_size

    def passed_at(self, block: int) -> int:
        """The first position that needs nothing of ``block`` nor of those before it."""
        return self.reach.last((block + 1) * self.block_size - 1) + 1

    def end_block(self, tokens: int) -> int:
        """Index after the last block that holds one of the first ``tokens`` tokens."""
        held = self.other_tokens if self.reach.kind == "another" else tokens
        return -(-held // self.block_size)

    def blocks_for(self, tokens: int, in_flight: int) -> int:
        """The most blocks that a request holds at once on its way to ``tokens`` tokens.

        A window of ``w`` tokens needs, before the oldest can go, ``w - 1`` earlier tokens and
        those of one step, which may begin and end anywhere in a block. (vLLM plans the same, and
        at times one block more: ``SlidingWindowSpec.max_memory_usage_bytes``.) A chunk begins at
        multiples of its length only.

        Args:
            tokens: Tokens of the request.
            in_flight: The most tokens that one step computes for it.
        """
        whole = self.end_block(tokens)
        if not self.reach.tokens:
            return whole
        span = self.reach.tokens - 1 + min(in_flight, tokens)
        apart = gcd(self.reach.tokens, self.block_size) if self.reach.kind == "chunk" else 1
        return min(whole, -(-(span - apart) // self.block_size) + 1)
