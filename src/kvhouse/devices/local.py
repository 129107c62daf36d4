"""This machine, measured: memory, read bandwidth and the rate of a float32 matrix product."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvhouse.devices.device import Device
from kvhouse.errors import KvhouseError

#: Bytes that each thread reads; several times a core's share of any last-level cache.
READ_BYTES = 128 * 2**20
READ_REPEATS = 7
#: Sides of the square matrices: the first is large enough on a few cores; the others are tried
#: where a product takes less than ``GEMM_SECONDS``, so that many cores have enough to do.
GEMM_SIDES = (1536, 3072, 6144)
GEMM_SECONDS = 0.05
GEMM_REPEATS = 5

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def measure() -> Device:
    """Measure this machine, once per process.

    Bandwidth: one thread per core reads an array of its own, far larger than the caches.
    FLOP/s: numpy's float32 matrix product on all its threads. Narrower dtypes are not measured,
    since numpy does not multiply in them. Of several passes the fastest counts: other work on
    the machine can only slow one down, and a floor must not be higher than what it can do.
    """
    threads = _cores()
    memory = memory_bytes()
    return Device(
        name="local",
        title=f"this machine ({threads} cores, {platform.machine()})",
        memory_bytes=memory,
        bandwidth=_read_bandwidth(threads, min(READ_BYTES, memory // (8 * threads))),
        flops={"float32": _best_gemm_rate()},
        basis="measured",
        source="memory: operating system; bandwidth: numpy reads, one thread per core; "
        "float32: numpy matrix product; each the fastest of several passes",
    )


def memory_bytes() -> int:
    """Physical memory, or the limit of this process's control group where that is smaller.

    Raises:
        KvhouseError: The operating system does not tell.
    """
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        raise KvhouseError("device local: this operating system does not tell its memory") from None
    return min([total, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    limits = []
    for name in _CGROUP_LIMITS:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return limits


def _cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def rate(
    work: Callable[[], object],
    amount: float,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """``amount`` per second in the fastest of ``repeats`` runs of ``work``."""
    durations = []
    for _ in range(repeats):
        start = clock()
        work()
        durations.append(clock() - start)
    return amount / min(durations)


def _read_bandwidth(threads: int, bytes_each: int) -> float:
    """Bytes per second that all threads together read from memory."""
    with ThreadPoolExecutor(threads) as pool:
        # Each thread fills its own array, so that its pages lie in the memory next to its core.
        arrays = list(pool.map(lambda _: np.ones(bytes_each // 8, np.int64), range(threads)))
        return rate(
            lambda: list(pool.map(_read, arrays)),
            sum(array.nbytes for array in arrays),
            READ_REPEATS,
        )


def _read(array: NDArray[np.int64]) -> object:
    """Read the whole array; numpy lets go of the interpreter lock while it reduces."""
    return np.bitwise_or.reduce(array)


def _best_gemm_rate(rate_of: Callable[[int], float] | None = None) -> float:
    """The highest rate over the sides, larger ones only while a product is over quickly."""
    rate_of = rate_of or _gemm_rate
    best = 0.0
    for side in GEMM_SIDES:
        measured = rate_of(side)
        best = max(best, measured)
        if 2 * side**3 / measured >= GEMM_SECONDS:
            break
    return best


def _gemm_rate(side: int) -> float:
    """Float32 operations per second of a product of two square matrices."""
    matrix = np.ones((side, side), np.float32)
    out = np.empty_like(matrix)
    np.matmul(matrix, matrix, out=out)
    return rate(lambda: np.matmul(matrix, matrix, out=out), 2 * side**3, GEMM_REPEATS)
