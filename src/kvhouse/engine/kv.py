"""The pool's tensors: where keys and values lie."""

from __future__ import annotations

import math
from itertools import accumulate
from pathlib import Path

import torch

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.layout import KVLayout
from kvhouse.spec.layers import describe

_MEMINFO = Path("/proc/meminfo")


class KVTensors:
    """One allocation that holds all keys and values: layer by layer, slot by slot within it.

    Layer ``i`` has keys ``[blocks, block_size, kv_heads, key_dim]`` and values
    ``[blocks, block_size, kv_heads, value_dim]``. A *slot* is the place of one token: slot
    ``block * block_size + offset``. Fresh memory holds arbitrary bits, NaN among them, so only
    slots that were written may ever be read.

    Args:
        layout: Shapes, format and block size.
        blocks: Blocks in the pool.

    Raises:
        UnsupportedModel: Layers do not all keep every token, or states have to be kept.
        KvhouseError: A format that has scales, or the machine has not that much memory free.
    """

    def __init__(self, layout: KVLayout, blocks: int) -> None:
        _refuse_what_has_no_tensors(layout)
        (group,) = layout.groups
        self.layout = layout
        self.blocks = blocks
        self.dtype: torch.dtype = getattr(torch, group.format.dtype)
        self._storage = _allocate(layout.block_bytes * blocks, self.dtype)
        slots = blocks * layout.block_size
        shapes = [(slots, count, size) for layer in group.layers for count, size in layer.vectors]
        ends = list(accumulate(math.prod(shape) for shape in shapes))
        views = [
            self._storage[end - math.prod(shape) : end].view(shape)
            for end, shape in zip(ends, shapes, strict=True)
        ]
        self._keys, self._values = views[0::2], views[1::2]

    @property
    def nbytes(self) -> int:
        """Bytes of the pool; ``layout.block_bytes * blocks``."""
        return self._storage.numel() * self.dtype.itemsize

    @property
    def layers(self) -> int:
        """Number of layers that keep keys and values."""
        return len(self._keys)

    @property
    def vector_elements(self) -> int:
        """Most elements that one token's keys, or its values, take in any layer."""
        return max(tensor[0].numel() for tensor in self._keys + self._values)

    def slots(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values by slot: ``[slots, kv_heads, key_dim or value_dim]``."""
        return self._keys[layer], self._values[layer]

    def block_view(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same by block: ``[blocks, block_size, kv_heads, key_dim or value_dim]``."""
        shape = (self.blocks, self.layout.block_size)
        keys, values = self.slots(layer)
        return keys.view(*shape, *keys.shape[1:]), values.view(*shape, *values.shape[1:])


def _refuse_what_has_no_tensors(layout: KVLayout) -> None:
    if layout.several_kinds:
        kinds = {describe(layer): None for group in layout.groups for layer in group.layers}
        states = ["state"] if layout.slot_bytes else []
        raise UnsupportedModel(
            "the engine holds full attention only, and this model has layers of several kinds: "
            + ", ".join([*kinds, *states])
        )
    if layout.format.scale_bytes:
        raise KvhouseError(
            f"KV format {layout.format.name}: the engine stores formats without scales only; "
            "plan and replay take it"
        )


def _allocate(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Allocate ``size`` bytes, flat.

    Linux hands out pages on first touch, so ``torch.empty`` succeeds for more than there is and
    the process is killed later; hence the look at what is available before.
    """
    available = available_memory()
    if available is None or size <= available:
        try:
            return torch.empty(size // dtype.itemsize, dtype=dtype)
        except RuntimeError:
            pass
    free = "unknown" if available is None else f"{available:,} bytes"
    raise KvhouseError(
        f"cannot allocate {size:,} bytes of KV memory, available is {free}: "
        "ask for a smaller KV budget"
    )


def available_memory() -> int | None:
    """Bytes that this machine can still give to a process; None where it does not tell."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
