"""Attention of tokens that come together, compiled, in pairs of bfloat16.

The same units, tiles and softmax as ``attend``, where the model computes in bfloat16 and the
processor multiplies pairs of them: keys and values are turned into panels once a tile, and all
rows of the unit are multiplied with them. Rounded to bfloat16 are weights, as FlashAttention does
(Dao et al. 2022), queries where they had to be rotated, int4's keys and dequantised values; sums
and totals are float32.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from kvhouse.engine.kernels.cpu.fields import UNIT, WORK
from kvhouse.engine.kernels.cpu.helpers import Record, place, vector_bytes
from kvhouse.engine.kernels.cpu.intrinsics import fetch_add, memory
from kvhouse.engine.kernels.cpu.linear_ir import BLOCK, PANEL_WORD
from kvhouse.engine.kernels.cpu.pairs_intrinsics import pair_product, turn_keys, turn_values
from kvhouse.engine.kernels.cpu.pairs_ir import PANEL, PRODUCT_ROWS
from kvhouse.engine.kernels.cpu.program_intrinsics import put_row
from kvhouse.engine.kernels.cpu.softmax import begin_unit, end_unit, soften
from kvhouse.engine.kernels.cpu.vectors_ir import BF16, ITEM_BYTES

_ONE = np.float32(1)


def working_bytes(size: int, key_tile: int) -> int:
    """Bytes of working memory behind a unit's rows: panels, then a factor for each key.

    Panels of keys and of values lie in the same place, one after the other, on a border of 64.

    Args:
        size: Elements of a key or a value, whichever has more.
        key_tile: Keys of a tile, a multiple of 32.
    """
    return 64 + 2 * size * key_tile + 4 * key_tile


@njit(error_model="numpy", inline="always")
def attend_pair_units(kind: int, fmt: int, call: Record) -> None:
    """Keys and values: take units until none is left; ``kind`` is one of ``linear_ir``'s."""
    scratch = call.scratch + fetch_add(call.workers, 1) * call.scratch_bytes
    unit = carray(memory(scratch), (1,), UNIT)[0]
    works = carray(memory(call.works), (call.units // call.each,), WORK)
    size = call.key_size
    index = fetch_add(call.next, 1)
    while index < call.units:
        work = works[index // call.each]
        begin_unit(call, work, unit, index % call.each, scratch, size, _ONE)
        for row in range(unit.query, unit.query + 4 * unit.rows * size, 4 * size):
            put_row(1, row, row, size)
        panels = (unit.across + 63) // 64 * 64
        for tile in range(work.begin - work.begin % BLOCK, work.end, call.key_tile):
            end = min(tile + call.key_tile, work.end)
            _score_tile(kind, fmt, call, work, unit, tile, end, panels)
            soften(BF16, call, work, unit, BLOCK, tile, end)
            _weigh_tile(kind, fmt, call, work, unit, tile, end, panels)
        end_unit(call, work, unit)
        index = fetch_add(call.next, 1)


@njit(error_model="numpy")
def _score_tile(
    kind: int,
    fmt: int,
    call: Record,
    work: Record,
    unit: Record,
    tile: int,
    end: int,
    panels: int,
) -> None:
    """Scores of all rows with the keys of a tile."""
    item, size = ITEM_BYTES[fmt], call.key_size
    each = size // 2 * PANEL_WORD
    factors = panels + call.key_tile // PANEL * each
    for first in range(tile, end, BLOCK):
        block, offset = place(call, work, first)
        turn_keys(
            fmt,
            call.keys + block + unit.head * call.key_head + offset * item,
            call.block_size * item,
            size,
            call.key_scales + block + unit.head * call.key_scale_head + 2 * offset,
            call.query_factor,
            panels + (first - tile) // PANEL * each + (first - tile) % PANEL * 4,
            factors + (first - tile) * 4,
        )
    stride = 4 * call.key_tile
    for row in range(0, unit.rows, PRODUCT_ROWS):
        x, out, last = unit.query + row * 4 * size, unit.scores + row * stride, unit.rows - 1 - row
        for first in range(0, end - tile, PANEL):
            panel, mine = panels + first // PANEL * each, factors + 4 * first
            pair_product(kind, 0, panel, x, 4 * size, last, 2 * size, mine, out + 4 * first, stride)


@njit(error_model="numpy")
def _weigh_tile(
    kind: int,
    fmt: int,
    call: Record,
    work: Record,
    unit: Record,
    tile: int,
    end: int,
    panels: int,
) -> None:
    """Add up a tile's values, weighted.

    Outside a unit's keys weights are 0. But memory that nobody wrote to may hold NaN, so a token
    that the unit sees stands for those: there is one in each run of 16.
    """
    size, stride = call.value_size, vector_bytes(fmt, call.value_size)
    each, step = call.key_tile // 2 * PANEL_WORD, 4 * call.key_tile
    aligned = tile + (end - tile + BLOCK - 1) // BLOCK * BLOCK
    for first in range(tile, aligned, BLOCK):
        block, offset = place(call, work, first)
        values = call.values + block + unit.head * call.value_head + offset * stride
        scales = call.value_scales + block + unit.head * call.value_scale_head + 2 * offset
        for token in range(0, BLOCK, 2):
            one = min(max(first + token, work.begin), work.end - 1) - first
            other = min(max(first + token + 1, work.begin), work.end - 1) - first
            turn_values(
                fmt,
                values + one * stride,
                values + other * stride,
                size,
                scales + 2 * one,
                scales + 2 * other,
                2 * call.block_size,
                panels + (first - tile + token) // 2 * PANEL_WORD,
                each,
            )
    count = aligned - tile
    for row in range(0, unit.rows, PRODUCT_ROWS):
        x, out, last = unit.scores + row * step, unit.sums + row * 4 * size, unit.rows - 1 - row
        for first in range(0, size, PANEL):
            panel = panels + first // PANEL * each
            pair_product(kind, 1, panel, x, step, last, 2 * count, 0, out + 4 * first, 4 * size)
