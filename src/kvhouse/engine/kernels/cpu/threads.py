"""Running compiled code on torch's own threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def run(address: int, data: int, threads: int) -> None:
    """Run the function at ``address`` on so many threads at once, with ``data`` as its argument.

    Python's lock is free meanwhile.
    """
    if threads == 1:
        _FUNCTION(address)(data)
    else:
        _team()(address, data, threads)


@cache
def _team() -> Callable[[int, int, int], None]:
    """How to run on several threads.

    Torch's OpenMP runtime is asked directly. A second pool of threads would have to be woken and
    put to sleep twice a layer, and would fight with torch's for the cores.
    """
    for library in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*")):
        try:
            parallel = ctypes.CDLL(str(library)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return lambda address, data, threads: parallel(address, data, threads, 0)
    return _in_a_pool


def _in_a_pool(address: int, data: int, threads: int) -> None:
    """Python's own threads, where torch's runtime cannot be asked."""
    others = [_pool().submit(_FUNCTION(address), data) for _ in range(threads - 1)]
    _FUNCTION(address)(data)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="kvhouse-kernel")
