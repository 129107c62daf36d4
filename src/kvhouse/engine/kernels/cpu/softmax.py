"""The softmax of a unit of work, compiled: where it begins, each tile, and where it ends.

Scores are in units of ``log 2``, so that the exponentials are powers of two.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from kvhouse.engine.kernels.cpu.helpers import (
    Record,
    first_seen,
    give_row,
    rotate_row,
    take_row,
)
from kvhouse.engine.kernels.cpu.intrinsics import (
    cap_row,
    exponentials,
    fetch_add,
    float_at,
    memory,
    peak,
    power_of_two,
    put_float,
    scale_row,
)
from kvhouse.engine.kernels.cpu.vectors_ir import BF16

#: A peak before any score was seen. Not minus infinity, whose difference from itself is NaN.
_LOWEST = np.float32(-1e30)
_HIDDEN = np.float32(-np.inf)
_LOG2_E = np.float32(1.4426950408889634)
_ZERO = np.float32(0)

UNIT_BYTES = 128


@njit(error_model="numpy")
def begin_unit(
    call: Record,
    work: Record,
    unit: Record,
    place: int,
    scratch: int,
    size: int,
    factor: float,
) -> None:
    """Lay out a thread's working memory for a unit, and fetch its queries.

    They have ``size`` elements and are multiplied by ``factor``.
    """
    part = place % call.parts
    unit.place, unit.head = place, place // call.parts * call.unit_heads
    unit.kv_heads = min(call.unit_heads, call.kv_heads - unit.head)
    unit.first = part * call.part_heads
    unit.heads = min(call.part_heads, call.shared - unit.first)
    unit.head_rows = work.tokens * unit.heads
    unit.rows = unit.kv_heads * unit.head_rows
    unit.query = scratch + UNIT_BYTES
    unit.sums = unit.query + 4 * unit.rows * size
    unit.scores = unit.sums + 4 * unit.rows * call.value_size
    unit.peaks = unit.scores + 4 * unit.rows * call.key_tile
    unit.totals = unit.peaks + 4 * unit.rows
    unit.across = unit.totals + 4 * unit.rows
    for row in range(unit.rows):
        token, head = token_of(work, unit, row), query_head(call, unit, row)
        source = call.query + token * call.query_token + head * call.query_head
        target = unit.query + 4 * row * size
        take_row(call.dtype, source, target, size, factor)
        if call.key_rotation:
            rotate_row(target, size, call.key_rotation)
    clear(call, unit)


@njit(error_model="numpy")
def token_of(work: Record, unit: Record, row: int) -> int:
    """The token of a row, counted in the pack."""
    return work.token + row % unit.head_rows // unit.heads


@njit(error_model="numpy")
def query_head(call: Record, unit: Record, row: int) -> int:
    """The query head of a row."""
    head = unit.head + row // unit.head_rows
    return head * call.shared + unit.first + row % unit.heads


@njit(error_model="numpy")
def clear(call: Record, unit: Record) -> None:
    """Nothing was seen yet."""
    _floats(unit.peaks, unit.rows)[:] = _LOWEST
    _floats(unit.totals, unit.rows)[:] = _ZERO
    _floats(unit.sums, unit.rows * call.value_size)[:] = _ZERO


@njit(error_model="numpy")
def soften(
    fmt: int, call: Record, work: Record, unit: Record, lanes: int, tile: int, end: int
) -> None:
    """Turn a tile's scores into weights, relative to the highest score so far.

    They are of ``fmt``: fp32, or bf16 in the first half of each row.
    """
    scored = (end - tile + lanes - 1) // lanes * lanes
    count = (scored + 15) // 16 * 16
    for token in range(work.tokens):
        position = work.position + token
        first = max(first_seen(call, position), work.begin) - tile
        last = min(position + 1, end) - tile
        for head in range(unit.kv_heads):
            row = head * unit.head_rows + token * unit.heads
            for turn in range(row, row + unit.heads):
                soften_row(fmt, call, unit, turn, count, first, last)


@njit(error_model="numpy")
def soften_row(
    fmt: int, call: Record, unit: Record, row: int, count: int, first: int, last: int
) -> None:
    """The same of one row, which sees the tile's keys from ``first`` to before ``last``."""
    scores = unit.scores + 4 * row * call.key_tile
    if call.cap:
        cap_row(scores, count, call.cap, call.unit)
    if first > 0:
        _floats(scores, count)[: min(first, count)] = _HIDDEN
    if last < count:
        _floats(scores, count)[max(last, 0) :] = _HIDDEN
    old = float_at(unit.peaks + 4 * row)
    new = peak(scores, count, old)
    total = float_at(unit.totals + 4 * row)
    if new > old:
        factor = power_of_two(old - new)
        total *= factor
        scale_row(unit.sums + 4 * row * call.value_size, call.value_size, factor)
        put_float(unit.peaks + 4 * row, new)
    if fmt == BF16:
        total += exponentials(1, scores, count, new)
    else:
        total += exponentials(0, scores, count, new)
    put_float(unit.totals + 4 * row, total)


@njit(error_model="numpy")
def end_unit(call: Record, work: Record, unit: Record) -> None:
    """Write what was found to the output; of split keys once all of them are done."""
    if work.splits == 1:
        _give(call, work, unit)
        return
    _leave(call, unit, _record(call, work, unit, work.split))
    counter = call.merges + 8 * (work.merge * call.each + unit.place)
    if fetch_add(counter, 1) + 1 == work.splits:
        fetch_add(counter, -work.splits)
        clear(call, unit)
        # In order, whoever was last, so that the same step gives the same bits.
        for split in range(work.splits):
            _merge(call, unit, _record(call, work, unit, split))
        _give(call, work, unit)


@njit(error_model="numpy")
def _floats(address: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return carray(memory(address), (count,), np.float32)


@njit(error_model="numpy")
def _record(call: Record, work: Record, unit: Record, split: int) -> int:
    number = (work.record + split) * call.each + unit.place
    return call.partials + number * call.partial_bytes


@njit(error_model="numpy")
def _leave(call: Record, unit: Record, record: int) -> None:
    """Leave peaks, totals and sums for whoever merges."""
    rows = unit.rows
    _floats(record, rows)[:] = _floats(unit.peaks, rows)
    _floats(record + 4 * rows, rows)[:] = _floats(unit.totals, rows)
    count = rows * call.value_size
    _floats(record + 8 * rows, count)[:] = _floats(unit.sums, count)


@njit(error_model="numpy")
def _merge(call: Record, unit: Record, record: int) -> None:
    """Add what another unit left."""
    rows, size = unit.rows, call.value_size
    for row in range(rows):
        old, other = float_at(unit.peaks + 4 * row), float_at(record + 4 * row)
        new = max(old, other)
        mine, theirs = power_of_two(old - new), power_of_two(other - new)
        total = float_at(unit.totals + 4 * row) * mine
        put_float(unit.totals + 4 * row, total + float_at(record + 4 * (rows + row)) * theirs)
        put_float(unit.peaks + 4 * row, new)
        sums = _floats(unit.sums + 4 * row * size, size)
        left = _floats(record + 8 * rows + 4 * row * size, size)
        for element in range(size):
            sums[element] = sums[element] * mine + left[element] * theirs


@njit(error_model="numpy")
def _give(call: Record, work: Record, unit: Record) -> None:
    """Divide by the totals, sinks included, and write the output."""
    item = 4 if call.dtype == 0 else 2
    for row in range(unit.rows):
        token, head = token_of(work, unit, row), query_head(call, unit, row)
        sums = unit.sums + 4 * row * call.value_size
        total = float_at(unit.totals + 4 * row)
        if call.sinks:
            old, sink = float_at(unit.peaks + 4 * row), float_at(call.sinks + 4 * head) * _LOG2_E
            new = max(old, sink)
            factor = power_of_two(old - new)
            scale_row(sums, call.value_size, factor)
            total = total * factor + power_of_two(sink - new)
        if call.value_rotation:
            rotate_row(sums, call.value_size, call.value_rotation)
        place = (token * call.query_heads + head) * call.value_size
        give_row(call.dtype, sums, call.out + item * place, call.value_size, total)
