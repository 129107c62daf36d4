"""The tiers of a replay: how large they are, and the links to them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from kvhouse.core.tier import TierConfig
from kvhouse.core.tiers import LoadRule, always
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.links import Link, load_rule

#: Seconds before a step's first byte comes over a link, where nothing else is said: assumed, the
#: order of what it takes to start a copy. A disk takes longer.
DEFAULT_LINK_LATENCY = 10e-6


@dataclass(frozen=True, slots=True)
class LinkedTier:
    """A tier, and the way to it."""

    config: TierConfig
    link: Link

    def to_dict(self) -> dict[str, Any]:
        """What was set, as plain values."""
        return {
            **asdict(self.config),
            "bytes_per_second": self.link.bandwidth,
            "latency_seconds": self.link.latency,
        }


@dataclass(frozen=True, slots=True)
class Tiering:
    """What lies below the pool; nothing by default.

    Attributes:
        host_memory: Bytes of host memory.
        host_link: Bytes per second to or from it, one direction; by default the device's.
        nvme_memory: Bytes on NVMe drives, below host memory where there is some.
        nvme_link: Bytes per second between these and the device, one direction.
        latency: Seconds before a step's first byte comes over a link.
        replacement: How each chooses what to give up: ``lru`` or ``arc``.
        write: When the first of them takes a block: ``through`` once it is full, ``back`` once
            its content must leave the pool.
    """

    host_memory: int | None = None
    host_link: float | None = None
    nvme_memory: int | None = None
    nvme_link: float | None = None
    latency: float = DEFAULT_LINK_LATENCY
    replacement: str = "lru"
    write: str = "back"

    def __bool__(self) -> bool:
        """Whether there is any tier."""
        return self.host_memory is not None or self.nvme_memory is not None

    def on(self, device: Device) -> tuple[LinkedTier, ...]:
        """The tiers of ``device``, the one next below the pool first.

        Raises:
            KvhouseError: A figure is missing or out of range.
        """
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise KvhouseError(f"a link latency of {self.latency} s: give 0 or more seconds")
        TierConfig("host", 1, self.replacement, self.write)  # refused without a tier as well
        tiers: list[LinkedTier] = []
        host_link = device.host_link if self.host_link is None else self.host_link
        for name, memory, given, rate in (
            ("host", self.host_memory, self.host_link, host_link),
            ("nvme", self.nvme_memory, self.nvme_link, self.nvme_link),
        ):
            if memory is not None:
                config = self._config(name, memory, first=not tiers)
                tiers.append(LinkedTier(config, self._link(name, rate, device)))
            elif given is not None:
                raise KvhouseError(
                    f"a rate of the {name} link without {name} memory: say how large that tier is"
                )
        return tuple(tiers)

    def _config(self, name: str, memory: int, *, first: bool) -> TierConfig:
        if memory < 1:
            raise KvhouseError(f"{name} memory of {memory} bytes: give at least one block's")
        return TierConfig(name, memory, self.replacement, self.write if first else "back")

    def _link(self, name: str, rate: float | None, device: Device) -> Link:
        if rate is None:
            raise KvhouseError(
                f"the rate of the link between {device.name} and {name} memory is not known: "
                f"give it, such as --{name}-link 25GB/s"
            )
        if not (math.isfinite(rate) and rate > 0):
            raise KvhouseError(f"a {name} link of {rate} bytes per second: give more than 0")
        return Link(rate, self.latency)


def rule_of(tiers: tuple[LinkedTier, ...], roofline: Roofline) -> LoadRule:
    """The rule that loads from ``tiers`` what is sooner loaded than computed again.

    Raises:
        KvhouseError: How long computing takes is not known.
    """
    if not tiers:
        return always
    if roofline.flop_rate is None:
        raise KvhouseError(
            f"device {roofline.device.name} has no FLOP/s for this model's arithmetic, so nobody "
            "can tell whether loading from a tier pays: state them in a device file"
        )
    return load_rule(roofline, [tier.link for tier in tiers])
