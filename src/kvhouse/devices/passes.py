"""Timing a machine: the fastest of many short passes, and what numpy reaches in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

#: Bytes that each thread reads; several times a core's share of any last-level cache.
READ_BYTES = 128 * 2**20
#: Sides of the square matrices: a larger one is tried where a product took less than
#: ``PRODUCT_SECONDS``, so that many cores have enough to do.
SIDES = (256, 768, 1536, 3072, 6144)
PRODUCT_SECONDS = 0.01
#: Passes, and the seconds after which no further one is begun.
PASSES = 15
SECONDS = 0.25


def rate(
    work: Callable[[], object],
    amount: float,
    passes: int = PASSES,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """``amount`` per second in the fastest of ``passes`` runs of ``work``, of fewer if it is slow.

    Other work on the machine can only slow a pass down, and a floor must not be higher than what
    the machine can do; short passes are the likelier to be left alone.
    """
    durations: list[float] = []
    while len(durations) < passes and sum(durations) < SECONDS:
        start = clock()
        work()
        durations.append(clock() - start)
    return amount / min(durations)


def best_rate(rate_of: Callable[[int], float]) -> float:
    """The highest rate of products over ``SIDES``, larger ones while a product is over quickly.

    Args:
        rate_of: Operations per second of a product of two square matrices of a side.
    """
    best = 0.0
    for side in SIDES:
        measured = rate_of(side)
        best = max(best, measured)
        if 2 * side**3 / measured >= PRODUCT_SECONDS:
            break
    return best


def read_bandwidth(threads: int, memory_bytes: int) -> float:
    """Bytes per second that threads together read from memory, each an array of its own."""
    bytes_each = min(READ_BYTES, memory_bytes // (8 * threads))
    with ThreadPoolExecutor(threads) as pool:
        # Each thread fills its own array, so that its pages lie in the memory next to its core.
        arrays = list(pool.map(lambda _: np.ones(bytes_each // 8, np.int64), range(threads)))
        return rate(lambda: list(pool.map(_read, arrays)), sum(array.nbytes for array in arrays))


def product_rate(side: int) -> float:
    """Float32 operations per second of numpy's product of two square matrices."""
    matrix = np.ones((side, side), np.float32)
    out = np.empty_like(matrix)
    np.matmul(matrix, matrix, out=out)
    return rate(lambda: np.matmul(matrix, matrix, out=out), 2 * side**3)


def _read(array: NDArray[np.int64]) -> object:
    """Read the whole array; numpy lets go of the interpreter lock while it reduces."""
    return np.bitwise_or.reduce(array)
