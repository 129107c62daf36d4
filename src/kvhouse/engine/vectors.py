"""Vectors in blocks: keys or values of one layer, as the KV format stores them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvhouse.engine.encoding import decode, encode
from kvhouse.engine.rotation import rotate
from kvhouse.formats import KVFormat


@dataclass(frozen=True, slots=True)
class Vectors:
    """One kind of vector of one layer, in every block of the pool.

    Attributes:
        data: The elements, ``[blocks, block_size, heads, stored]`` in the format's dtype, where
            ``stored`` is the number of elements; or half of it, uint8, in a format of 4 bits.
            Strides may be any; ``cut`` says how the elements lie.
        scales: bfloat16 ``[blocks, block_size, heads, groups]``; None in a format without scales.
        size: Elements of a vector.
        format: How they are stored.
        rotated: Whether they are stored rotated (``kvhouse.engine.rotation``).
    """

    data: torch.Tensor
    scales: torch.Tensor | None
    size: int
    format: KVFormat
    rotated: bool = False

    @property
    def heads(self) -> int:
        """Vectors of one token."""
        return self.data.shape[2]

    def write(self, blocks: torch.Tensor, offsets: torch.Tensor, vectors: torch.Tensor) -> None:
        """Store vectors, ``[n, heads, size]`` of any float dtype, at ``n`` places."""
        if self.rotated:
            vectors = rotate(vectors.float())
        if self.scales is None:
            self.data[blocks, offsets] = vectors.to(self.data.dtype)
            return
        elements, scales = encode(vectors.float(), self.format)
        # Torch has no indexed writes of float8.
        self._bytes[blocks, offsets] = elements.view(torch.uint8)
        self.scales[blocks, offsets] = scales

    def read(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The vectors at ``n`` places, not rotated any more, float32 ``[n, heads, size]``."""
        if self.scales is None:
            vectors = self.data[blocks, offsets].float()
        else:
            elements = self._bytes[blocks, offsets].view(self.data.dtype)
            vectors = decode(elements, self.scales[blocks, offsets], self.size, self.format)
        return rotate(vectors) if self.rotated else vectors

    @property
    def _bytes(self) -> torch.Tensor:
        return self.data.view(torch.uint8)


def cut(
    region: torch.Tensor,
    block_size: int,
    vectors: tuple[tuple[int, int], ...],
    kv_format: KVFormat,
    *,
    across: tuple[int, ...] = (),
    rotated: bool = False,
) -> tuple[Vectors, ...]:
    """Cut a layer's share of every block, ``[blocks, bytes]``, into its kinds of vectors.

    First come the elements of all kinds, then the scales of all, so that both are aligned. Within
    a kind a block holds one head after the other; of a head one token's elements after the
    other's, or of a kind in ``across`` all tokens' first elements, then all second ones: a kernel
    that multiplies a block of keys with a query adds up many tokens at once that way. Scales lie
    ``across`` in every kind.

    Args:
        region: uint8; the layer's bytes of each block.
        block_size: Tokens to a block.
        vectors: ``(number of vectors, elements in each)`` of each kind, for one token.
        kv_format: How they are stored.
        across: Indices of the kinds whose elements lie across tokens.
        rotated: Whether they are stored rotated.
    """
    packed = kv_format.bits < 8
    dtype = torch.uint8 if packed else getattr(torch, kv_format.dtype)
    data, at = [], 0
    for kind, (count, size) in enumerate(vectors):
        width = -(-size * kv_format.bits // 8) if packed else size
        stop = at + block_size * count * width * dtype.itemsize
        part = region[:, at:stop].view(dtype)
        data.append(_by_token(part, block_size, count, width, lies_across=kind in across))
        at = stop
    scales: list[torch.Tensor | None] = []
    for count, size in vectors:
        groups = kv_format.scales(size)
        stop = at + block_size * count * groups * kv_format.scale_bytes
        part = region[:, at:stop].view(torch.bfloat16)
        scales.append(
            _by_token(part, block_size, count, groups, lies_across=True) if groups else None
        )
        at = stop
    return tuple(
        Vectors(elements, scale, size, kv_format, rotated)
        for elements, scale, (_, size) in zip(data, scales, vectors, strict=True)
    )


def _by_token(
    part: torch.Tensor, block_size: int, heads: int, width: int, *, lies_across: bool
) -> torch.Tensor:
    """A kind's share of every block as ``[blocks, block_size, heads, width]``."""
    if lies_across:
        return part.view(-1, heads, width, block_size).permute(0, 3, 1, 2)
    return part.view(-1, heads, block_size, width).transpose(1, 2)
