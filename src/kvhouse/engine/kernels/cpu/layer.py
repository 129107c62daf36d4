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
    call: Any
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
