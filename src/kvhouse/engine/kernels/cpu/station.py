"""What a Python thread has at hand to run programs: working memory that outlives a call."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvhouse.engine.kernels.cpu import threads
from kvhouse.engine.kernels.cpu.program_fields import PROGRAM

_Program: Any = np.ctypeslib.as_ctypes_type(PROGRAM)


class Station:
    """One Python thread's working memory.

    Compiled code lets other Python threads run meanwhile, so they must not share it.
    """

    def __init__(self) -> None:
        self._program = _Program()
        self._address = ctypes.addressof(self._program)
        # In a cache line of its own, since all threads write to it.
        self._workers = (ctypes.c_int64 * 16)()
        self._program.workers = ctypes.addressof(self._workers) + 64
        self._scratch: NDArray[np.int64] | None = None

    def run(self, runner: int, ops: int, count: int, scratch_bytes: int) -> None:
        """Run ``count`` operations, whose counters are 0, on torch's threads.

        Args:
            runner: Address of the compiled function.
            ops: Address of the operations.
            count: How many they are.
            scratch_bytes: Working memory that a thread needs, a multiple of 64.
        """
        program, team = self._program, torch.get_num_threads()
        if program.scratch_bytes < scratch_bytes or program.threads != team:
            self._provide(max(scratch_bytes, program.scratch_bytes), team)
        program.ops, program.count = ops, count
        self._workers[8] = 0
        threads.run(runner, self._address, team)

    def _provide(self, scratch_bytes: int, team: int) -> None:
        self._scratch = np.zeros(scratch_bytes * team // 8 + 8, np.int64)
        program = self._program
        program.scratch = -(-self._scratch.ctypes.data // 64) * 64
        program.scratch_bytes, program.threads = scratch_bytes, team


class _Stations(threading.local):
    def __init__(self) -> None:
        self.own = Station()


_STATIONS = _Stations()


def station() -> Station:
    """That of the thread that asks."""
    return _STATIONS.own
