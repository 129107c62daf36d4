"""What memory this machine still has, and taking some of it."""

from __future__ import annotations

from pathlib import Path

import torch

from kvhouse.errors import KvhouseError

_MEMINFO = Path("/proc/meminfo")


def allocate(size: int) -> torch.Tensor:
    """Allocate ``size`` bytes, uint8 ``[size]``; what they hold is arbitrary.

    Linux hands out pages on first touch, so ``torch.empty`` succeeds for more than there is and
    the process is killed later; hence the look at what is available before.

    Raises:
        KvhouseError: The machine has not that much memory free.
    """
    available = available_memory()
    if available is None or size <= available:
        try:
            return torch.empty(size, dtype=torch.uint8)
        except RuntimeError:
            pass
    free = "unknown" if available is None else f"{available:,} bytes"
    raise KvhouseError(
        f"cannot allocate {size:,} bytes of KV memory, available is {free}: "
        "ask for a smaller KV budget"
    )


def available_memory() -> int | None:
    """Bytes that this machine can still give to a process; None where it does not tell."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
