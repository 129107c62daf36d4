"""The pool's tensors: where keys, values and states lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvhouse.engine.available import allocate
from kvhouse.engine.vectors import Vectors, cut
from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.formats import is_rotated
from kvhouse.layout import KVLayout, LayerGroup, PoolSize
from kvhouse.spec import ModelSpec
from kvhouse.spec.layers import FullAttention, LatentAttention, Layer, describe
from kvhouse.spec.reach import Reach

#: Formats whose keys and values can be stored rotated.
ROTATABLE = ("int8", "int4")


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one layer keeps of tokens, and where.

    Attributes:
        group: Index of the layer's group, and so of its block table in a row.
        block_size: Tokens to a block of that group.
        reach: Which tokens the layer sees.
        vectors: Its keys and its values; or of latent attention the latents and the rotary parts.
        latent: Whether it is latent attention.
    """

    group: int
    block_size: int
    reach: Reach
    vectors: tuple[Vectors, ...]
    latent: bool = False


class KVTensors:
    """One allocation that holds every block, and one that holds every state.

    A block of ``layout.block_bytes`` bytes is cut into *pieces*, and the pool lies piece by
    piece: all blocks' first pieces, then all blocks' second ones. Where the layers of all groups
    line up, each has a piece of its own, so that what one layer reads lies together; else the
    whole block is one piece. Fresh memory holds arbitrary bits, NaN among them, so only places
    that were written may ever be read.

    Args:
        spec: The model.
        layout: Its layout.
        size: Blocks and slots of the pool.
        rotate: Whether keys and values are stored rotated, which int8 and int4 can be; None for
            int4 only. Latents never are: their keys and values are one vector, and rotating it
            does not help.

    Attributes:
        rotated: Whether keys and values are stored rotated where they can be.
        layers: What each layer's attention keeps of tokens, by the layer's number in the model.
        states: Each slot's bytes, uint8 ``[slots, slot_bytes]``.

    Raises:
        UnsupportedModel: A layer keeps what the engine has no tensors for.
        KvhouseError: The machine has not that much memory free, a block size does not suit the
            format, or what is asked to be rotated cannot be.
    """

    def __init__(
        self, spec: ModelSpec, layout: KVLayout, size: PoolSize, *, rotate: bool | None = None
    ) -> None:
        refuse_what_has_no_tensors(layout)
        _refuse_rotation(layout, rotate)
        self.rotated = is_rotated(layout.format.name, rotate)
        self.layout = layout
        self.size = size
        self.states = allocate(size.slots * layout.slot_bytes).view(size.slots, layout.slot_bytes)
        blocks = allocate(size.blocks * layout.block_bytes)
        widths = _piece_bytes(layout)
        parts = torch.split(blocks, [size.blocks * width for width in widths]) if widths else ()
        self._pieces = [
            part.view(size.blocks, width) for part, width in zip(parts, widths, strict=True)
        ]
        self.layers: dict[int, LayerKV] = {}
        for number, place in _places(spec, layout):
            # An indexer stands after the attention that it selects for.
            self.layers.setdefault(number, self._layer(place))

    @property
    def nbytes(self) -> int:
        """Bytes of the pool: ``layout.pool_bytes`` of its size."""
        blocks: int = sum(piece.numel() for piece in self._pieces)
        return blocks + self.states.numel()

    def read_block(self, block: int) -> torch.Tensor:
        """A copy of a block's bytes, uint8 ``[block_bytes]``."""
        return torch.cat([piece[block] for piece in self._pieces])

    def write_block(self, block: int, content: torch.Tensor) -> None:
        """Fill a block with what ``read_block`` gave."""
        parts = torch.split(content, [piece.shape[1] for piece in self._pieces])
        for piece, part in zip(self._pieces, parts, strict=True):
            piece[block] = part

    def _layer(self, place: _Place) -> LayerKV:
        group, position = self.layout.groups[place.group], place.position
        if len(self._pieces) > 1:
            region = self._pieces[position][:, : _layer_bytes(group, position)]
        else:
            start = sum(_layer_bytes(group, earlier) for earlier in range(position))
            region = self._pieces[0][:, start : start + _layer_bytes(group, position)]
        layer = group.layers[position]
        plain = isinstance(layer, FullAttention)
        vectors = cut(
            region,
            group.block_size,
            layer.vectors,
            group.format,
            across=(0,) if plain else (),
            rotated=self.rotated and plain,
        )
        latent = isinstance(layer, LatentAttention)
        return LayerKV(place.group, group.block_size, group.reach, vectors, latent)


@dataclass(frozen=True, slots=True)
class _Place:
    """A layer's group and its position among the group's layers."""

    group: int
    position: int


def _places(spec: ModelSpec, layout: KVLayout) -> Iterator[tuple[int, _Place]]:
    """Where each layer that keeps tokens lies, by its number in the model.

    Groups take a kind's layers in the model's order (``layout.grouping``), so counting through
    the groups of a kind finds them again.
    """
    reaches = {group.reach for group in layout.groups}
    free = {reach: _places_of(reach, layout) for reach in reaches}
    for number, layer in enumerate(spec.layers):
        for part in layer.parts:
            if part.vectors and part.reach in free:
                yield number, next(free[part.reach])


def _places_of(reach: Reach, layout: KVLayout) -> Iterator[_Place]:
    for index, group in enumerate(layout.groups):
        if group.reach == reach:
            yield from (_Place(index, position) for position in range(len(group.layers)))


def _layer_bytes(group: LayerGroup, position: int) -> int:
    return group.block_size * group.layers[position].token_bytes(group.format, group.dtype)


def _piece_bytes(layout: KVLayout) -> list[int]:
    """Bytes of each piece of a block; their sum is the block's."""
    if not layout.groups:
        return []
    each = [
        [_layer_bytes(group, position) for position in range(len(group.layers))]
        for group in layout.groups
    ]
    fullest = max(each, key=lambda sizes: (sum(sizes), len(sizes)))
    aligned = all(sizes == fullest[: len(sizes)] for sizes in each)
    return fullest if aligned and sum(fullest) == layout.block_bytes else [layout.block_bytes]


def refuse_what_has_no_tensors(layout: KVLayout) -> None:
    """Raise `UnsupportedModel` where a layer keeps what the engine has no tensors for."""
    layers = [(group, layer) for group in layout.groups for layer in group.layers]
    kinds = {describe(layer): None for group, layer in layers if not _has_tensors(group, layer)}
    if kinds:
        raise UnsupportedModel(f"the engine has no tensors for {', '.join(kinds)}")
    for group, layer in layers:
        if layout.format.scale_bytes and (
            group.block_size * sum(count * size for count, size in layer.vectors) % 2
        ):
            raise KvhouseError(
                f"block size {group.block_size}: with KV format {layout.format.name} this model "
                "needs an even one"
            )


def _refuse_rotation(layout: KVLayout, rotate: bool | None) -> None:
    if not rotate:
        return
    if layout.format.name not in ROTATABLE:
        raise KvhouseError(
            f"KV format {layout.format.name} cannot be rotated: {' and '.join(ROTATABLE)} can"
        )
    layers = [layer for group in layout.groups for layer in group.layers]
    kinds = {describe(layer): None for layer in layers if not isinstance(layer, FullAttention)}
    if kinds:
        raise KvhouseError(
            f"KV rotation is for keys and values, and this model keeps {', '.join(kinds)}: "
            "leave the rotation off"
        )


def _has_tensors(group: LayerGroup, layer: Layer) -> bool:
    return group.stride == 1 and group.reach.kind in ("all", "window", "chunk") and not layer.fixed
