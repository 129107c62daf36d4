"""Compiled code on records and rows that kernels share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from kvhouse.engine.kernels.cpu.fields import REACHES
from kvhouse.engine.kernels.cpu.intrinsics import memory, narrow_row, whole_at, widen_row
from kvhouse.engine.kernels.cpu.vectors_ir import INT4, ITEM_BYTES

_WINDOW, _CHUNK = REACHES["window"], REACHES["chunk"]

#: A record of ``fields``, as compiled code sees it.
Record = Any


@njit(error_model="numpy")
def place(call: Record, work: Record, position: int) -> tuple[int, int]:
    """Where a position of a share's request lies: bytes before its block, and offset in it."""
    entry, offset = position // call.block_size, position % call.block_size
    block = whole_at(call.tables + 8 * (work.table + entry - work.table_start))
    return block * call.block_bytes, offset


@njit(error_model="numpy")
def first_seen(call: Record, position: int) -> int:
    """The first position that the token at ``position`` sees."""
    if call.reach == _WINDOW:
        return max(0, position + 1 - call.reach_tokens)
    if call.reach == _CHUNK:
        return position - position % call.reach_tokens
    return 0


@njit(error_model="numpy")
def vector_bytes(fmt: int, size: int) -> int:
    """Bytes of a vector's elements."""
    return size // 2 if fmt == INT4 else size * ITEM_BYTES[fmt]


@njit(error_model="numpy")
def rotate_row(address: int, size: int, side: int) -> None:
    """The Walsh-Hadamard rotation of each ``side`` floats of a row, in place."""
    row = carray(memory(address), (size,), np.float32)
    step = 1
    while step < side:
        for start in range(0, size, 2 * step):
            for first in range(start, start + step):
                x, y = row[first], row[first + step]
                row[first] = x + y
                row[first + step] = x - y
        step *= 2
    factor = np.float32(side) ** np.float32(-0.5)
    for element in range(size):
        row[element] *= factor


@njit(error_model="numpy")
def take_row(dtype: int, source: int, target: int, size: int, factor: float) -> None:
    """Elements of one of the three dtypes, times a factor, as floats."""
    if dtype == 0:
        widen_row(0, source, target, size, factor)
    elif dtype == 1:
        widen_row(1, source, target, size, factor)
    else:
        widen_row(2, source, target, size, factor)


@njit(error_model="numpy")
def give_row(dtype: int, source: int, target: int, size: int, divisor: float) -> None:
    """Floats over a divisor as elements of one of the three dtypes."""
    if dtype == 0:
        narrow_row(0, source, target, size, divisor)
    elif dtype == 1:
        narrow_row(1, source, target, size, divisor)
    else:
        narrow_row(2, source, target, size, divisor)
