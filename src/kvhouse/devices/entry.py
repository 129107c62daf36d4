"""From an entry of the table to a device.

An entry states figures as vendors print them, so that they can be compared with the source:

- ``memory`` in GiB and ``driver`` in MiB;
- ``bandwidth`` in GB/s;
- ``dense`` in TFLOP/s by dtype, and ``sparse`` where only figures with structured sparsity (two
  of four factors zero) are printed, twice the dense ones;
- ``pcie``, generation and lanes (``4x16``), or ``host_both``, GB/s of both directions together;
- ``peer_both``, GB/s of both directions of all links to other devices together.

A figure is a number, or a list of a number, its source's key and a remark; a bare number comes
from the entry's ``source``. What is not published is left out. ``configurable`` marks devices
that are sold with more or less memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvhouse.devices.device import DTYPES, Device
from kvhouse.units import GIB, MIB, bytes_text

GIGA = 10**9
TERA = 10**12

#: Giga-transfers per second and lane, and the share of the bits that encoding and framing leave:
#: 128b/130b from generation 3 on; in generation 6 flits of 256 bytes carry 236 bytes of packets.
_PCIE = {3: (8, 128 / 130), 4: (16, 128 / 130), 5: (32, 128 / 130), 6: (64, 236 / 256)}


def pcie(link: str) -> float:
    """Bytes per second and direction of a PCIe link such as ``4x16``, packet headers included."""
    generation, lanes = (int(part) for part in link.split("x"))
    rate, efficiency = _PCIE[generation]
    return rate * GIGA * lanes / 8 * efficiency


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of an entry: its value in base units, and where it comes from."""

    value: float
    source: str


class Entry:
    """An entry's figures by the names that ``Device`` has for them."""

    def __init__(self, values: dict[str, Any], sources: dict[str, str]) -> None:
        """Read ``values``, whose sources are keys of ``sources``."""
        self._values = values
        self._sources = sources
        self.figures: dict[str, Figure] = {}
        self._add("memory_bytes", "memory", lambda gib: gib * GIB)
        self._add("driver_bytes", "driver", lambda mib: mib * MIB)
        self._add("bandwidth", "bandwidth", lambda rate: rate * GIGA)
        self._add("host_link", "pcie", pcie, "PCIe {}, generation x lanes")
        self._add("host_link", "host_both", lambda rate: rate * GIGA / 2, "half of {} GB/s")
        self._add("peer_link", "peer_both", lambda rate: rate * GIGA / 2, "half of {} GB/s")
        for dtype in DTYPES:
            self._add(dtype, dtype, lambda rate: rate * TERA, group="dense")
            self._add(
                dtype, dtype, lambda rate: rate * TERA / 2, "half of {} with sparsity", "sparse"
            )

    def _add(
        self,
        name: str,
        key: str,
        convert: Callable[[Any], float],
        remark: str = "",
        group: str | None = None,
    ) -> None:
        """Take the figure under ``key``, if there is one."""
        values = self._values if group is None else self._values.get(group, {})
        if key not in values:
            return
        cell = values[key]
        stated, *rest = cell if isinstance(cell, list) else [cell]
        source, *remarks = rest or [self._values["source"]]
        remarks = [remark.format(stated), *remarks] if remark else remarks
        text = self._sources[source]
        self.figures[name] = Figure(convert(stated), "; ".join([*remarks, text]))

    def value(self, name: str) -> float | None:
        """A figure's value, or None where there is none."""
        return self.figures[name].value if name in self.figures else None

    def device(self, name: str, vendor: str, memory_bytes: int | None) -> Device:
        """The device, with its nominal memory or with ``memory_bytes`` where that is given."""
        driver = self.value("driver_bytes")
        memory = self.figures["memory_bytes"].value if memory_bytes is None else memory_bytes
        title = self._values["title"]
        if self._values.get("configurable"):
            largest = ", the most there is" if memory_bytes is None else ""
            title = f"{title} with {bytes_text(int(memory))}{largest}"
        return Device(
            name=name,
            title=title,
            memory_bytes=int(memory),
            bandwidth=float(self.figures["bandwidth"].value),
            flops={d: float(self.figures[d].value) for d in DTYPES if d in self.figures},
            basis="datasheet",
            source=self._source(),
            vendor=self._values.get("vendor", vendor),
            family=self._values["family"],
            year=self._values["year"],
            driver_bytes=None if driver is None else int(driver),
            host_link=self.value("host_link"),
            peer_link=self.value("peer_link"),
            sources={name: figure.source for name, figure in self.figures.items()},
        )

    def _source(self) -> str:
        """Which figure comes from where, figures of one source together."""
        by_source: dict[str, list[str]] = {}
        for name, figure in self.figures.items():
            by_source.setdefault(figure.source.split("; ")[-1], []).append(name)
        return "; ".join(f"{', '.join(names)}: {text}" for text, names in by_source.items())
