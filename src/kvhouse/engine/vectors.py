"""Vectors in blocks: keys or values of one layer, as the KV format stores them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvhouse.formats import KVFormat


@dataclass(frozen=True, slots=True)
class Vectors:
    """One kind of vector of one layer, in every block of the pool.

    Attributes:
        data: The elements, ``[blocks, block_size, heads, stored]`` in the format's dtype, where
            ``stored`` is the number of elements; or half of it, uint8, in a format of 4 bits. The
            first stride may be any: the other dimensions lie close together.
        scales: bfloat16 ``[blocks, block_size, heads, groups]``; None in a format without scales.
        size: Elements of a vector.
        format: How they are stored.
    """

    data: torch.Tensor
    scales: torch.Tensor | None
    size: int
    format: KVFormat

    @property
    def heads(self) -> int:
        """Vectors of one token."""
        return self.data.shape[2]

    def write(self, blocks: torch.Tensor, offsets: torch.Tensor, vectors: torch.Tensor) -> None:
        """Store vectors, ``[n, heads, size]``, at ``n`` places."""
        self.data[blocks, offsets] = vectors.to(self.data.dtype)

    def read(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The vectors at ``n`` places, float32 ``[n, heads, size]``."""
        return self.data[blocks, offsets].float()


def cut(
    region: torch.Tensor,
    block_size: int,
    vectors: tuple[tuple[int, int], ...],
    kv_format: KVFormat,
) -> tuple[Vectors, ...]:
    """Cut a layer's share of every block, ``[blocks, bytes]``, into its kinds of vectors.

    First come the elements of all kinds, then the scales of all, so that both are aligned.

    Args:
        region: uint8; the layer's bytes of each block.
        block_size: Tokens to a block.
        vectors: ``(number of vectors, elements in each)`` of each kind, for one token.
        kv_format: How they are stored.
    """
    packed = kv_format.bits < 8
    dtype = torch.uint8 if packed else getattr(torch, kv_format.dtype)
    stored = [-(-size * kv_format.bits // 8) if packed else size for _, size in vectors]
    data, at = [], 0
    for (count, _), width in zip(vectors, stored, strict=True):
        stop = at + block_size * count * width * dtype.itemsize
        data.append(region[:, at:stop].view(dtype).view(-1, block_size, count, width))
        at = stop
    scales: list[torch.Tensor | None] = []
    for count, size in vectors:
        groups = -(-size // (kv_format.scaled or size)) if kv_format.scale_bytes else 0
        stop = at + block_size * count * groups * kv_format.scale_bytes
        part = region[:, at:stop].view(torch.bfloat16)
        scales.append(part.view(-1, block_size, count, groups) if groups else None)
        at = stop
    return tuple(
        Vectors(elements, scale, size, kv_format)
        for elements, scale, (_, size) in zip(data, scales, vectors, strict=True)
    )
