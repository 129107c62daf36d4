"""What compiled code has to know of one layer, and the code compiled for it."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch

from kvhouse.engine.kernels.cpu import compiled
from kvhouse.engine.kernels.cpu.fields import REACHES, Call
from kvhouse.engine.kernels.cpu.linear_ir import BLOCK, PAIRS
from kvhouse.engine.kernels.cpu.pairs import working_bytes
from kvhouse.engine.kernels.cpu.pairs_ir import PANEL
from kvhouse.engine.kernels.cpu.vectors_ir import BF16
from kvhouse.engine.kv import LayerKV
from kvhouse.engine.rotation import rotation_size
from kvhouse.engine.vectors import Vectors

#: Rows of a unit at most: enough to make a tile of keys worth fetching, few enough that their
#: sums stay in the nearest cache. What is turned once for all rows is worth more of them.
_ROWS, _TURNED_ROWS = 32, 64

#: Keys of a tile: while units have few rows or are multiplied in pairs, and otherwise.
_KEY_TILE, _SMALL_KEY_TILE, _FEW_ROWS = 128, 64, 16


@dataclass(frozen=True, slots=True)
class Way:
    """How a layer attends.

    Attributes:
        function: Address of the compiled function.
        rows: Rows of a unit at most.
        in_pairs: Whether it multiplies pairs of bfloat16; see ``pairs``.
    """

    function: int
    rows: int
    in_pairs: bool = False

    def key_tile(self, rows: int) -> int:
        """Keys of a tile, for units of so many rows: what they take stays in the nearest cache."""
        return _KEY_TILE if self.in_pairs or rows <= _FEW_ROWS else _SMALL_KEY_TILE

    def turned_bytes(self, size: int, value_size: int, lanes: int, key_tile: int) -> int:
        """Bytes of working memory for keys and values that are turned."""
        if self.in_pairs:
            return working_bytes(max(size, value_size), key_tile)
        return 4 * size * lanes


@dataclass(frozen=True, slots=True)
class CompiledLayer:
    """One layer's pages for compiled code.

    Attributes:
        kept: The layer's tensors.
        call: What all calls on the layer have in common.
        write: Address of the function that writes vectors.
        attend: How it attends.
        pairs: How it does for tokens that come together, where the model computes in bfloat16 and
            this is worth more; None where it cannot.
        lanes: Keys that are scored at once.
    """

    kept: LayerKV
    call: Any
    write: int
    attend: Way
    pairs: Way | None
    lanes: int

    @classmethod
    def of(cls, kept: LayerKV, dtype: str, *, latent: bool) -> CompiledLayer:
        """Compile what the layer needs, unless it is there already.

        Args:
            kept: The layer's tensors.
            dtype: What the model computes in.
            latent: Whether it is latent attention.
        """
        keys, values = reversed(kept.vectors) if latent else kept.vectors
        fmt, lanes = keys.format.name, gcd(kept.block_size, 16)
        width = 32 if values.size % 32 == 0 else 16
        attender = compiled.latent_attender if latent else compiled.attender
        return cls(
            kept,
            _call(kept, keys, values),
            compiled.writer(fmt, across=not latent),
            Way(attender(fmt, lanes, width), _TURNED_ROWS if latent else _ROWS),
            _pairs(keys, values, lanes) if dtype == "bfloat16" and not latent else None,
            lanes,
        )

    def way(self, dtype: int, *, alone: bool) -> Way:
        """How it attends for tokens that come alone or together.

        Args:
            dtype: The queries', by ``kernel.DTYPE_NUMBERS``.
            alone: Which of the two.
        """
        return self.attend if alone or dtype != BF16 or self.pairs is None else self.pairs


def pair_kind() -> int | None:
    """How pairs of bfloat16 are multiplied; None where floats are as fast."""
    return PAIRS if compiled.has_feature("avx512bf16") else None


def _pairs(keys: Vectors, values: Vectors, lanes: int) -> Way | None:
    kind = pair_kind()
    if kind is None or lanes != BLOCK or values.size % PANEL:
        return None
    return Way(compiled.pair_attender(kind, keys.format.name), _TURNED_ROWS, in_pairs=True)


def cannot(layers: Iterable[LayerKV]) -> str | None:
    """Why these layers need the reference kernel; None where they do not."""
    if platform.machine().lower() in ("x86_64", "amd64") and not compiled.has_feature("f16c"):
        return "this processor converts no float16"
    for layer in layers:
        for vectors in layer.vectors:
            if vectors.data.device.type != "cpu":
                return f"the pages lie on {vectors.data.device.type}"
            multiple = 32 if vectors.format.bits < 8 else 16
            if vectors.size % multiple:
                return (
                    f"vectors of {vectors.size} elements in {vectors.format.name} are no "
                    f"multiple of {multiple}"
                )
    return None


def _call(kept: LayerKV, keys: Vectors, values: Vectors) -> Any:  # noqa: ANN401 - a ``Call``
    call = Call()
    call.block_size = kept.block_size
    call.block_bytes = keys.data.stride(0) * keys.data.element_size()
    call.kv_heads = keys.heads
    call.reach, call.reach_tokens = REACHES[kept.reach.kind], kept.reach.tokens
    for name, vectors in (("key", keys), ("value", values)):
        lies = _lie(name, vectors.data) | _lie(f"{name}_scale", vectors.scales)
        side = rotation_size(vectors.size) if vectors.rotated else 0
        for field, number in (
            lies | {f"{name}_size": vectors.size, f"{name}_rotation": side}
        ).items():
            setattr(call, field, number)
    return call


def _lie(name: str, tensor: torch.Tensor | None) -> dict[str, int]:
    """Where a kind of vectors begins, and the bytes from one head to the next."""
    if tensor is None:
        return {}
    return {
        f"{name}s": tensor.data_ptr(),
        f"{name}_head": tensor.stride(2) * tensor.element_size(),
    }
