"""Options of the memory below the pool, which several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

HostMemory = Annotated[
    str | None,
    typer.Option(
        "--host-memory",
        metavar="SIZE",
        help="Host memory below the pool: blocks that must leave the pool are stored there, and "
        "loaded again where that is sooner than computing. With --compare, paged with it too.",
    ),
]
HostLink = Annotated[
    str | None,
    typer.Option(
        "--host-link",
        metavar="RATE",
        help="To and from host memory, each way, such as 32GB/s. By default the device's.",
    ),
]
NvmeMemory = Annotated[
    str | None,
    typer.Option(
        "--nvme-memory", metavar="SIZE", help="NVMe below that; it takes what host memory gives up."
    ),
]
NvmeLink = Annotated[
    str | None,
    typer.Option(
        "--nvme-link", metavar="RATE", help="Between NVMe and the device, each way, such as 6GB/s."
    ),
]
LinkLatency = Annotated[
    str,
    typer.Option(
        "--link-latency", metavar="TIME", help="Before a step's first byte comes over a link."
    ),
]
TierReplacement = Annotated[
    str, typer.Option("--tier-replacement", help="What a full tier gives up: lru or arc.")
]
TierWrite = Annotated[
    str,
    typer.Option(
        "--tier-write",
        help="When a block is stored: through, once it is full, or back, once its content must "
        "leave the pool.",
    ),
]
