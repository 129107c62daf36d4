"""A device, reduced to the figures that bound a step's memory and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvhouse.errors import KvhouseError

#: The dtype in which a device computes whatever it has no faster path for.
FALLBACK_DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Device:
    """What a roofline needs to know of a device.

    Attributes:
        name: What the user types.
        title: What the vendor calls it.
        memory_bytes: Its memory. For the table's devices this is the capacity of the chips that
            the vendor sells as "80 GB", which is 80 GiB; a driver keeps up to about 6 % of it
            (error correction, its own pages) and reports the rest.
        bandwidth: Bytes per second that it reads from that memory.
        flops: Dense floating-point operations per second, without sparsity, by the dtype of the
            factors. "float32" is true float32, not TF32.
        basis: Whether the figures are the vendor's or were measured here.
        source: Where they come from, in words.
    """

    name: str
    title: str
    memory_bytes: int
    bandwidth: float
    flops: Mapping[str, float] = field(hash=False)
    basis: Literal["datasheet", "measured"]
    source: str

    def flops_for(self, dtype: str) -> tuple[float, str]:
        """FLOP/s at which matrices of ``dtype`` are multiplied, and the dtype that figure is for.

        Where the device has no figure for ``dtype``, it is float32's, in which any narrower
        type can be computed; the second value then differs from ``dtype`` and is to be shown.

        Raises:
            KvhouseError: The device has a figure for neither.
        """
        for candidate in (dtype, FALLBACK_DTYPE):
            if candidate in self.flops:
                return self.flops[candidate], candidate
        raise KvhouseError(f"device {self.name} has no FLOP/s for {dtype} or {FALLBACK_DTYPE}")
