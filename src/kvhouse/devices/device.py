"""A device, reduced to the figures that bound a step's memory and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvhouse.errors import KvhouseError

#: For each dtype of factors, the dtypes in which a device without a figure for it can multiply
#: them: those that hold each of its values exactly.
WIDER: dict[str, tuple[str, ...]] = {
    "float4": ("float8", "float16", "bfloat16", "tfloat32", "float32"),
    "int4": ("int8", "float8", "float16", "bfloat16", "tfloat32", "float32"),
    "float8": ("float16", "bfloat16", "tfloat32", "float32"),
    "int8": ("float16", "bfloat16", "tfloat32", "float32"),
    "float16": ("tfloat32", "float32"),
    "bfloat16": ("tfloat32", "float32"),
    "tfloat32": ("float32",),
    "float32": (),
}

#: Every dtype that may have a figure, wide ones first.
DTYPES = tuple(reversed(WIDER))

LINKS = {"host": "to the host's memory", "peer": "to other devices"}


@dataclass(frozen=True, slots=True)
class Device:
    """What a roofline needs to know of a device.

    Attributes:
        name: What the user types.
        title: What the vendor calls it.
        memory_bytes: Its memory, nominal. For the table's devices this is the capacity of the
            chips that the vendor sells as "80 GB", which is 80 GiB.
        bandwidth: Bytes per second that it reads from that memory.
        flops: Dense floating-point operations per second, without sparsity, by the dtype of the
            factors (``DTYPES``). "float32" is true float32, not TF32, which is "tfloat32".
        basis: Whether the figures are the vendor's, were measured here, or are the user's own.
        source: Where they come from, in words.
        vendor: Who makes it; empty where nobody says.
        family: Its architecture or generation; empty where nobody says.
        year: When it appeared.
        driver_bytes: Its memory as the driver reports it (``nvidia-smi``, ``rocm-smi``), error
            correction and firmware taken off; None where no public log says. The total that
            torch sees is up to 2 % lower still, and differs from one driver to the next.
        host_link: Bytes per second to or from the host's memory, one direction; None where
            unknown.
        peer_link: Bytes per second to or from all other devices together over links made for it
            (NVLink, Infinity Fabric, ICI), one direction; None where there are none or unknown.
        sources: For each figure, where it comes from and how it was derived.
    """

    name: str
    title: str
    memory_bytes: int
    bandwidth: float
    flops: Mapping[str, float] = field(hash=False)
    basis: Literal["datasheet", "measured", "given"]
    source: str
    vendor: str = ""
    family: str = ""
    year: int | None = None
    driver_bytes: int | None = None
    host_link: float | None = None
    peer_link: float | None = None
    sources: Mapping[str, str] = field(hash=False, default_factory=dict)

    @property
    def usable_bytes(self) -> int:
        """What a process can have at most: the driver's figure where known, else the nominal."""
        return self.memory_bytes if self.driver_bytes is None else self.driver_bytes

    def flops_for(self, dtype: str) -> tuple[float, str]:
        """FLOP/s at which matrices of ``dtype`` are multiplied, and the dtype that figure is for.

        Where the device has no figure for ``dtype``, it is the fastest of those for types that
        hold its values exactly (``WIDER``); the second value then differs and is to be shown.
        A variant such as ``float8_e4m3fn`` counts as its type; a dtype that is not in ``WIDER``
        is taken to be computed in float32.

        Raises:
            KvhouseError: The device has a figure for none of them.
        """
        kind = dtype.partition("_")[0]
        if kind in self.flops:
            return self.flops[kind], kind
        rates = [(self.flops[w], w) for w in WIDER.get(kind, ("float32",)) if w in self.flops]
        if not rates:
            known = ", ".join(self.flops) or "nothing"
            raise KvhouseError(
                f"device {self.name} has no FLOP/s for {dtype} or a wider type (it has {known}): "
                "name another dtype or device, or state the figure in a device file"
            )
        return max(rates, key=lambda rate: rate[0])

    def link(self, kind: Literal["host", "peer"]) -> float:
        """Bytes per second of a link, one direction.

        Raises:
            KvhouseError: Unknown for this device.
        """
        rate = self.host_link if kind == "host" else self.peer_link
        if rate is None:
            raise KvhouseError(
                f"device {self.name} has no known bandwidth {LINKS[kind]}: "
                f"state {kind}_link in a device file"
            )
        return rate

    def to_dict(self) -> dict[str, Any]:
        """Every figure under a stable key; a device file may hold the same keys."""
        return {
            "name": self.name,
            "title": self.title,
            "vendor": self.vendor,
            "family": self.family,
            "year": self.year,
            "memory_bytes": self.memory_bytes,
            "driver_bytes": self.driver_bytes,
            "bandwidth": self.bandwidth,
            "host_link": self.host_link,
            "peer_link": self.peer_link,
            "flops": {dtype: self.flops.get(dtype) for dtype in DTYPES},
            "basis": self.basis,
            "source": self.source,
            "sources": [{"figure": name, "source": text} for name, text in self.sources.items()],
        }
