"""How layers of several kinds are cut into groups whose blocks have the same size.

One pool serves all groups only if any block can serve any group. So a block's bytes are chosen
first, and every kind of layer is cut into as many groups as it takes to fill such blocks; what a
group's layers leave of a block is padding, and lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import lcm

from kvhouse.formats import KVFormat
from kvhouse.layout.group import LayerGroup
from kvhouse.spec.layers import Layer
from kvhouse.spec.reach import Reach

#: Most groups: each has a block table for every request, which costs time in every step.
MOST_GROUPS = 16


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides which parts of layers can share a block table: their reach and stride."""

    reach: Reach
    stride: int


def make_groups(
    parts: Iterable[Layer], kv_format: KVFormat, dtype: str, block_size: int, other_tokens: int
) -> tuple[tuple[LayerGroup, ...], int]:
    """Cut the parts that keep tokens into groups, and choose the bytes of a block.

    Of all sizes at which blocks end with a layer, the one is taken that pads least the kind that
    it pads most, and of these the largest.

    Returns:
        The groups and the bytes of a block; no groups and 0 where no part keeps tokens.
    """
    wholes = [
        LayerGroup(
            tuple(members), kind.reach, kv_format, dtype, lcm(block_size, kind.stride),
            kind.stride, other_tokens,
        )
        for kind, members in _by_kind(parts).items()
    ]  # fmt: skip
    if len(wholes) <= 1:
        return tuple(wholes), sum(whole.layer_bytes for whole in wholes)
    block_bytes = max(_candidates(wholes), key=lambda size: (-_padding(wholes, size), size))
    groups = [group for whole in wholes for group in _cut(whole, block_bytes)]
    return tuple(groups), block_bytes


def _by_kind(parts: Iterable[Layer]) -> dict[Kind, list[Layer]]:
    """The parts that keep tokens, by kind; kinds in the order of their first part."""
    kinds: dict[Kind, list[Layer]] = {}
    for part in parts:
        if (part.vectors or part.fixed) and part.reach.kind != "fixed":
            kinds.setdefault(Kind(part.reach, part.stride), []).append(part)
    return kinds


def _candidates(wholes: list[LayerGroup]) -> set[int]:
    """Sizes at which the first blocks of some kind end with a layer."""
    sizes = {size for whole in wholes for size in accumulate(_sizes(whole))}
    largest = max(max(_sizes(whole)) for whole in wholes)
    fitting = {size for size in sizes if size >= largest}
    few = {size for size in fitting if sum(len(_cut(w, size)) for w in wholes) <= MOST_GROUPS}
    return few or {max(fitting)}


def _sizes(whole: LayerGroup) -> list[int]:
    """Bytes of each layer in one block."""
    entries = whole.block_size // whole.stride
    return [entries * layer.token_bytes(whole.format, whole.dtype) for layer in whole.layers]


def _cut(whole: LayerGroup, block_bytes: int) -> list[LayerGroup]:
    """Fill blocks with the layers one after the other."""
    cuts: list[list[Layer]] = []
    room = 0
    for layer, size in zip(whole.layers, _sizes(whole), strict=True):
        if not cuts or size > room:
            cuts.append([])
            room = block_bytes
        cuts[-1].append(layer)
        room -= size
    return [replace(whole, layers=tuple(layers)) for layers in cuts]


def _padding(wholes: list[LayerGroup], block_bytes: int) -> float:
    """The largest share of padding that a kind has, by the bytes of its layers."""
    return max(len(_cut(w, block_bytes)) * block_bytes / sum(_sizes(w)) for w in wholes)
