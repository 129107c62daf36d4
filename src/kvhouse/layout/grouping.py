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

    Of all sizes the one is taken that pads least the kind that it pads most, and of these the
    largest; but none that makes more than ``MOST_GROUPS``, if there is another.

    Returns:
        The groups and the bytes of a block; no groups and 0 where no part keeps tokens.
    """
    wholes = [
        LayerGroup(
            tuple(members),
            kind.reach,
            kv_format,
            dtype,
            lcm(block_size, kind.stride),
            kind.stride,
            other_tokens,
        )
        for kind, members in _by_kind(parts, other_tokens).items()
    ]
    sizes = [_sizes(whole) for whole in wholes]
    block_bytes = _choose(sizes)
    groups = [
        replace(whole, layers=tuple(layers))
        for whole, each in zip(wholes, sizes, strict=True)
        for layers in _cut(whole.layers, each, block_bytes)
    ]
    return tuple(groups), block_bytes


def _by_kind(parts: Iterable[Layer], other_tokens: int) -> dict[Kind, list[Layer]]:
    """The parts that keep tokens, by kind; kinds in the order of their first part."""
    kinds: dict[Kind, list[Layer]] = {}
    for part in parts:
        keeps = part.reach.kind != "fixed" and (other_tokens or not part.across)
        if keeps and (part.vectors or part.fixed):
            kinds.setdefault(Kind(part.reach, part.stride), []).append(part)
    return kinds


def _sizes(whole: LayerGroup) -> list[int]:
    """Bytes of each layer in one block."""
    entries = whole.block_size // whole.stride
    return [entries * layer.token_bytes(whole.format, whole.dtype) for layer in whole.layers]


def _choose(sizes: list[list[int]]) -> int:
    """The bytes of a block, from those of each layer of each kind."""
    if len(sizes) < 2:
        return sum(map(sum, sizes))
    # A block larger than what its fullest group fills is cut down to that without another change,
    # so only what consecutive layers fill need be tried.
    largest = max(map(max, sizes))
    runs = {run for each in sizes for run in _runs(each) if run >= largest}
    few = {run for run in runs if sum(_count(each, run) for each in sizes) <= MOST_GROUPS}
    return max(few or {max(runs)}, key=lambda run: (-_padding(sizes, run), run))


def _runs(sizes: list[int]) -> set[int]:
    """Bytes of all runs of consecutive layers."""
    return {run for start in range(len(sizes)) for run in accumulate(sizes[start:])}


def _cut(layers: tuple[Layer, ...], sizes: list[int], block_bytes: int) -> list[list[Layer]]:
    """Fill blocks with the layers one after the other."""
    cuts: list[list[Layer]] = []
    room = 0
    for layer, size in zip(layers, sizes, strict=True):
        if not cuts or size > room:
            cuts.append([])
            room = block_bytes
        cuts[-1].append(layer)
        room -= size
    return cuts


def _count(sizes: list[int], block_bytes: int) -> int:
    """How many groups ``_cut`` makes."""
    count, room = 1, block_bytes
    for size in sizes:
        if size > room:
            count, room = count + 1, block_bytes
        room -= size
    return count


def _padding(sizes: list[list[int]], block_bytes: int) -> float:
    """What the kind that is padded most takes of blocks, over the bytes of its layers."""
    return max(_count(each, block_bytes) * block_bytes / sum(each) for each in sizes)
