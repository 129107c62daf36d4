"""Writing keys and values into pages, compiled: rotated, rounded and put in place in one pass.

``fmt``, ``item`` (bytes of an element, or of the two of int4 that share one) and ``across``
(whether keys lie across tokens) are constants of the compiled code. The rounding is that of
``kvhouse.engine.encoding``, to the bit.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from kvhouse.engine.encoding import PEAKS
from kvhouse.engine.kernels.cpu.helpers import Record, rotate_row, take_row, vector_bytes
from kvhouse.engine.kernels.cpu.intrinsics import (
    bits_of,
    copy_item,
    fetch_add,
    float_of,
    memory,
    narrow_row,
    round_group,
    whole_at,
)
from kvhouse.engine.kernels.cpu.products_ir import GROUP, GROUP_BYTES
from kvhouse.engine.kernels.cpu.vectors_ir import FORMAT_NUMBERS, FP16, INT4

#: Tokens of a unit.
WRITE_TOKENS = 16

#: What the largest element is divided by, by the number of the format.
_PEAKS = tuple(np.float32(PEAKS.get(name, 1.0)) for name in FORMAT_NUMBERS)

_ONE, _ONE_BITS = np.float32(1), 0x3F800000
_INFINITY, _NAN_SCALE = np.int32(0x7F800000), 0x7FC0


@njit(error_model="numpy", inline="always")
def write_units(fmt: int, item: int, across: int, call: Record) -> None:
    """Take units until none is left."""
    scratch = call.scratch + fetch_add(call.workers, 1) * call.scratch_bytes
    key_bytes, value_bytes = vector_bytes(fmt, call.key_size), vector_bytes(fmt, call.value_size)
    apart = call.block_size if across else 1
    index = fetch_add(call.next, 1)
    while index < call.units:
        for token in range(index * WRITE_TOKENS, min((index + 1) * WRITE_TOKENS, call.tokens)):
            start = whole_at(call.places + 16 * token) * call.block_bytes
            offset = whole_at(call.places + 16 * token + 8)
            for head in range(call.kv_heads):
                _take(
                    call,
                    call.key_in + token * call.key_in_token + head * call.key_in_head,
                    scratch,
                    call.key_size,
                    call.key_rotation,
                )
                _put(
                    fmt,
                    item,
                    call,
                    scratch,
                    call.key_size,
                    call.key_scales + start + head * call.key_scale_head + 2 * offset,
                    call.keys
                    + start
                    + head * call.key_head
                    + offset * (item if across else key_bytes),
                    apart,
                )
                _take(
                    call,
                    call.value_in + token * call.value_in_token + head * call.value_in_head,
                    scratch,
                    call.value_size,
                    call.value_rotation,
                )
                _put(
                    fmt,
                    item,
                    call,
                    scratch,
                    call.value_size,
                    call.value_scales + start + head * call.value_scale_head + 2 * offset,
                    call.values + start + head * call.value_head + offset * value_bytes,
                    1,
                )
        index = fetch_add(call.next, 1)


@njit(error_model="numpy")
def _take(call: Record, source: int, target: int, size: int, rotation: int) -> None:
    take_row(call.dtype, source, target, size, _ONE)
    if rotation:
        rotate_row(target, size, rotation)


@njit(error_model="numpy", inline="always")
def _put(
    fmt: int,
    item: int,
    call: Record,
    row: int,
    size: int,
    scales: int,
    target: int,
    apart: int,
) -> None:
    """Round a row and put its elements, ``apart`` from each other, and its scales in place."""
    codes = row + 4 * size
    if fmt <= FP16:
        narrow_row(fmt, row, codes, size, _ONE)
    elif fmt == INT4:
        for group in range(size // GROUP):
            scale = round_group(row + 4 * GROUP * group, codes + GROUP_BYTES * group)
            _put_scale(scales + 2 * group * call.block_size, scale)
    else:
        scale = _scale(fmt, row, size)
        _put_scale(scales, scale)
        narrow_row(fmt, row, codes, size, _divisor(scale))
    for element in range(vector_bytes(fmt, size) // item):
        copy_item(item, codes + element * item, target + element * item * apart)


@njit(error_model="numpy")
def _put_scale(address: int, bits: int) -> None:
    carray(memory(address), (1,), np.uint16)[0] = bits


@njit(error_model="numpy")
def _scale(fmt: int, row: int, size: int) -> int:
    """The bits of the bfloat16 scale of a row, which is set to zero if it is not finite.

    Of floats without their sign the bits are in the same order as the values, NaN above all.
    """
    bits = carray(memory(row), (size,), np.int32)
    most = np.int32(0)
    for element in range(size):
        most = max(most, bits[element] & np.int32(0x7FFFFFFF))
    if most >= _INFINITY:
        bits[:] = np.int32(0)
        return _NAN_SCALE
    exact = bits_of(float_of(most) / _PEAKS[fmt])
    # Cutting off 16 bits gives a bfloat16; adding what is cut off first rounds it up.
    scale = (exact + 0xFFFF) >> 16
    return 1 if scale == 0 and most > 0 else scale


@njit(error_model="numpy")
def _divisor(scale: int) -> float:
    """What to divide by: the scale, or where all elements are 0 any number."""
    return float_of(_ONE_BITS if scale in (0, _NAN_SCALE) else scale << 16)
