"""Options of the memory below the pool, which several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import options
from kvhouse.units import parse_seconds

if TYPE_CHECKING:
    from kvhouse.replayer import Tiering

HostMemory = Annotated[
    str | None,
    typer.Option(
        "--host-memory",
        metavar="SIZE",
        help="Host memory below the pool: blocks that must leave the pool are stored there, and "
        "loaded again where that is sooner than computing. With --compare, paged with it too.",
    ),
]
NvmeMemory = Annotated[
    str | None,
    typer.Option(
        "--nvme-memory", metavar="SIZE", help="NVMe below that; it takes what host memory gives up."
    ),
]


@dataclass(frozen=True, slots=True)
class TierOptions:
    """The tiers of a replay, and the links to them."""

    host_memory: HostMemory = None
    host_link: Annotated[
        str | None,
        typer.Option(
            "--host-link",
            metavar="RATE",
            help="To and from host memory, each way, such as 32GB/s. By default the device's.",
        ),
    ] = None
    nvme_memory: NvmeMemory = None
    nvme_link: Annotated[
        str | None,
        typer.Option(
            "--nvme-link",
            metavar="RATE",
            help="Between NVMe and the device, each way, such as 6GB/s.",
        ),
    ] = None
    link_latency: Annotated[
        str,
        typer.Option(
            "--link-latency", metavar="TIME", help="Before a step's first byte comes over a link."
        ),
    ] = "10us"
    tier_replacement: Annotated[
        str, typer.Option("--tier-replacement", help="What a full tier gives up: lru or arc.")
    ] = "lru"
    tier_write: Annotated[
        str,
        typer.Option(
            "--tier-write",
            help="When a block is stored: through, once it is full, or back, once its content must "
            "leave the pool.",
        ),
    ] = "back"

    def tiering(self) -> Tiering:
        """What lies below the pool.

        Raises:
            KvhouseError: A size, rate or time is none.
        """
        from kvhouse.replayer import Tiering

        return Tiering(
            host_memory=options.size(self.host_memory),
            host_link=options.rate(self.host_link),
            nvme_memory=options.size(self.nvme_memory),
            nvme_link=options.rate(self.nvme_link),
            latency=parse_seconds(self.link_latency),
            replacement=self.tier_replacement,
            write=self.tier_write,
        )
