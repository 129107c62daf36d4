"""What memory this machine still has, and taking some of it."""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

import torch

from kvhouse.errors import KvhouseError

_MEMINFO = Path("/proc/meminfo")

#: Bytes of a huge page on most machines.
_HUGE_PAGE = 2 * 2**20


def allocate(size: int) -> torch.Tensor:
    """Allocate ``size`` bytes, uint8 ``[size]``; what they hold is arbitrary.

    Linux hands out pages on first touch, so an allocation succeeds for more than there is and the
    process is killed later; hence the look at what is available before. Where it can, it is asked
    for huge pages: a pool is read in pieces of a few KiB from all over, which else costs a walk
    through the page table for each.

    Raises:
        KvhouseError: The machine has not that much memory free.
    """
    available = available_memory()
    if available is None or size <= available:
        try:
            return _taken(size)
        except (RuntimeError, OSError):
            pass
    free = "unknown" if available is None else f"{available:,} bytes"
    raise KvhouseError(
        f"cannot allocate {size:,} bytes of KV memory, available is {free}: "
        "ask for a smaller KV budget"
    )


def _taken(size: int) -> torch.Tensor:
    """Memory from the system, on huge pages where it has them and ``size`` is worth one."""
    if size < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    area = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without them
        area.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(area, dtype=torch.uint8)
    first = -memory.data_ptr() % _HUGE_PAGE
    return memory[first : first + size]


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
