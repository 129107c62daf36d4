"""What compiled code has to know of one layer, and the code compiled for it."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

import llvmlite.binding
import numpy as np
import torch
from numpy.typing import NDArray

from kvhouse.engine.kernels.cpu import compiled
from kvhouse.engine.kernels.cpu.fields import CALL, REACHES
from kvhouse.engine.kv import LayerKV
from kvhouse.engine.rotation import rotation_size
from kvhouse.engine.vectors import Vectors

#: Rows of a unit at most: enough to make a tile of keys worth fetching, few enough that their
#: sums stay in the nearest cache. Latents are turned once for all rows, so they take more.
_ROWS, _LATENT_ROWS = 32, 64


@dataclass(frozen=True, slots=True)
class CompiledLayer:
    """One layer's pages for compiled code.

    Attributes:
        kept: The layer's tensors.
        call: What all calls on the layer have in common.
        write: Address of the function that writes vectors.
        attend: Address of the function that attends.
        lanes: Keys that are scored at once.
        rows: Rows of a unit at most.
    """

    kept: LayerKV
    call: NDArray[np.void]
    write: int
    attend: int
    lanes: int
    rows: int

    @classmethod
    def of(cls, kept: LayerKV, *, latent: bool) -> CompiledLayer:
        """Compile what the layer needs, unless it is there already."""
        keys, values = reversed(kept.vectors) if latent else kept.vectors
        fmt, lanes = keys.format.name, gcd(kept.block_size, 16)
        width = 32 if values.size % 32 == 0 else 16
        attender = compiled.latent_attender if latent else compiled.attender
        return cls(
            kept,
            _call(kept, keys, values),
            compiled.writer(fmt, across=not latent),
            attender(fmt, lanes, width),
            lanes,
            _LATENT_ROWS if latent else _ROWS,
        )

    @property
    def score_size(self) -> int:
        """Elements of a query."""
        return sum({id(v): v.size for v in self.kept.vectors}.values())


def cannot(layers: Iterable[LayerKV]) -> str | None:
    """Why these layers need the reference kernel; None where they do not."""
    features = llvmlite.binding.get_host_cpu_features()
    if platform.machine().lower() in ("x86_64", "amd64") and not features.get("f16c"):
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


def _call(kept: LayerKV, keys: Vectors, values: Vectors) -> NDArray[np.void]:
    call = np.zeros(1, CALL)
    call["block_size"] = kept.block_size
    call["block_bytes"] = keys.data.stride(0) * keys.data.element_size()
    call["kv_heads"] = keys.heads
    call["reach"], call["reach_tokens"] = REACHES[kept.reach.kind], kept.reach.tokens
    for name, vectors in (("key", keys), ("value", values)):
        call[f"{name}_size"] = vectors.size
        call[f"{name}s"], call[f"{name}_head"] = _lie(vectors.data)
        if vectors.scales is not None:
            call[f"{name}_scales"], call[f"{name}_scale_head"] = _lie(vectors.scales)
        call[f"{name}_rotation"] = rotation_size(vectors.size) if vectors.rotated else 0
    return call


def _lie(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a kind of vectors begins, and the bytes from one head to the next."""
    return tensor.data_ptr(), tensor.stride(2) * tensor.element_size()
