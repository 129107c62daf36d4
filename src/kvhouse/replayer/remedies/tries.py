"""What is tried beside the settings that need no figure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvhouse.errors import KvhouseError

#: Host memory for each device, tried where nothing else is said: assumed.
DEFAULT_HOST_MEMORY = 64 * 2**30
#: NVMe for each device, tried where nothing else is said: assumed.
DEFAULT_NVME_MEMORY = 2**40
#: Bytes per second of a drive where nothing else is said: assumed. PCIe 4.0 with four lanes carries
#: 4 x 16 GT/s x 128/130 / 8 bits = 7.88 GB/s at most (PCI Express Base Specification 4.0).
DEFAULT_NVME_LINK = 6e9
#: Pairs that are replayed at most.
DEFAULT_PAIRS = 6

#: More devices than these are not compared.
MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class Tries:
    """Figures of the remedies, where the base does not have them already.

    Attributes:
        host_memory: Bytes of host memory for each device.
        host_link: Bytes per second to or from it; by default the device's own.
        nvme_memory: Bytes on NVMe drives for each device.
        nvme_link: Bytes per second between them and the device; None for the assumed default.
        devices: How many times the base's devices are compared, as tensor parallelism and as
            replicas.
        pairs: Pairs that are replayed at most; 0 for none.

    Raises:
        KvhouseError: A figure is out of range.
    """

    host_memory: int = DEFAULT_HOST_MEMORY
    host_link: float | None = None
    nvme_memory: int = DEFAULT_NVME_MEMORY
    nvme_link: float | None = None
    devices: tuple[int, ...] = (2,)
    pairs: int = DEFAULT_PAIRS

    def __post_init__(self) -> None:
        if min(self.host_memory, self.nvme_memory) < 1:
            raise KvhouseError("a tier to try has at least 1 byte")
        for link in (self.host_link, self.nvme_link):
            if link is not None and not (math.isfinite(link) and link > 0):
                raise KvhouseError(f"a link of {link} bytes per second: give more than 0")
        if any(not 2 <= count <= MOST_DEVICES for count in self.devices):
            raise KvhouseError(
                f"devices {', '.join(map(str, self.devices))}: compare 2 to {MOST_DEVICES:,}"
            )
        if len(set(self.devices)) < len(self.devices):
            raise KvhouseError("devices: name each number once")
        if not 0 <= self.pairs <= 1000:
            raise KvhouseError(f"{self.pairs} pairs: give 0 to 1,000")
