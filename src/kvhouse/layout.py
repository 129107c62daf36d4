"""From what a model keeps to bytes in a pool: block bytes, blocks per request and per budget."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.formats import KVFormat, get_format
from kvhouse.spec.layers import FullAttention, Layer, describe
from kvhouse.spec.model import ModelSpec

#: Tokens per block; vLLM's default on GPUs as well.
DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share one block table: a block holds the same tokens for each of them."""

    layers: tuple[Layer, ...]
    format: KVFormat

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers of the group."""
        return sum(
            count * self.format.vector_bytes(elements)
            for layer in self.layers
            for count, elements in layer.vectors
        )


@dataclass(frozen=True)
class KVLayout:
    """How a model's KV lies in blocks of ``block_size`` tokens.

    A block is the unit that a pool hands out: ``block_size`` consecutive tokens of one request,
    in every layer of the group (PagedAttention, Kwon et al. 2023, arXiv 2309.06180).
    """

    groups: tuple[LayerGroup, ...]
    format: KVFormat
    block_size: int

    @classmethod
    def of(
        cls, spec: ModelSpec, kv_format: str = "bf16", block_size: int = DEFAULT_BLOCK_SIZE
    ) -> KVLayout:
        """Lay out ``spec`` in ``kv_format``.

        Raises:
            UnsupportedModel: A layer does not keep every token, each in vectors of one size.
            KvhouseError: Unknown format, or a block size below one token.
        """
        for layer in spec.layers:
            if type(layer) is not FullAttention:
                raise UnsupportedModel(
                    f"{spec.name}: blocks hold full attention only, and this model has layers of "
                    f"kind {describe(layer)!r}: kvhouse.spec gives their bytes"
                )
        if block_size < 1:
            raise KvhouseError(f"block size {block_size}: a block holds at least 1 token")
        fmt = get_format(kv_format)
        return cls((LayerGroup(spec.layers, fmt),), fmt, block_size)

    @cached_property
    def bytes_per_token(self) -> int:
        """Logical bytes of one token's keys and values in all layers."""
        return sum(group.bytes_per_token for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.bytes_per_token

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens of one request."""
        return -(-tokens // self.block_size)

    def blocks_in(self, budget_bytes: int) -> int:
        """Whole blocks in a budget; the remainder stays outside the pool."""
        return max(0, budget_bytes) // self.block_bytes

    def require_blocks(self, blocks: int) -> None:
        """Refuse a pool without a block.

        Raises:
            KvhouseError: ``blocks`` is below 1.
        """
        if blocks < 1:
            raise KvhouseError(
                "the KV memory is smaller than one block: a block of "
                f"{self.block_size} tokens takes {self.block_bytes:,} bytes"
            )
