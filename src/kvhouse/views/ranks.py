"""What the figures of one rank of several leave out, or count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def ranks_text(scenario: Mapping[str, Any]) -> str:
    """What the bytes of tensor parallelism are those of, and how its sums are counted.

    Args:
        scenario: As ``ReplayResult.scenario`` has it.

    Returns:
        Empty where one device has every layer to itself.
    """
    ranks, rate = scenario.get("tp", 1), scenario.get("sum_bytes_per_second")
    if ranks == 1:
        return ""
    sums = (
        "not counted: no link between them is known"
        if rate is None
        else f"counted at {rate / 1e9:,.4g} GB/s, full bandwidth, latency left out"
    )
    return f"Bytes are those of each of {ranks} ranks; sums over them {sums}."
