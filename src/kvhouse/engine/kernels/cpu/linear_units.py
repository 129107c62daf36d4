"""Matrix products, compiled: one unit of an operation's work after the other.

A unit is a *panel* of two blocks of weights with all tokens, or 256 of them; the threads take units
until none is left. With few tokens a product is a read of the weights, and each panel is read once
for all of them.
"""

from __future__ import annotations

from numba import carray, njit

from kvhouse.engine.kernels.cpu.helpers import Record
from kvhouse.engine.kernels.cpu.intrinsics import copy_item, fetch_add, memory
from kvhouse.engine.kernels.cpu.linear_ir import BLOCK, DOT_ROWS, PANEL_WORD
from kvhouse.engine.kernels.cpu.program_fields import BLOCK_ROWS, FLOAT32
from kvhouse.engine.kernels.cpu.program_intrinsics import (
    activate_row,
    add_row,
    dot,
    multiply_row,
    put_row,
    turn,
    wide,
)

#: Tokens up to which weights are multiplied as they lie.
DOT_TOKENS = 8

#: Tokens that are multiplied at once, otherwise: with a panel's 32 rows enough sums to keep the
#: machine's multipliers busy, and no more pointers than it has registers for.
WIDE_TOKENS = 8

#: Tokens that a panel of weights, once turned, is multiplied with.
UNIT_TOKENS = 256

#: Working memory of a thread: sums first, then a row of a block, then turned weights.
_SPARE = WIDE_TOKENS * PANEL_WORD
SUMS_BYTES = _SPARE + 64

_BLOCK_BYTES = 4 * BLOCK


@njit(error_model="numpy", inline="always")
def linear_units(kind: int, op: Record, taken: int, scratch: int) -> None:
    """Take units until none is left."""
    panels = (op.block_count + 1) // 2
    few = op.tokens <= DOT_TOKENS
    units = panels if few else panels * ((op.tokens + UNIT_TOKENS - 1) // UNIT_TOKENS)
    # The next unit is taken before it is begun, so that its weights can be asked for.
    unit, following = fetch_add(taken, 1), fetch_add(taken, 1)
    while unit < units:
        ahead = min(following, units - 1) % panels
        if few:
            _dot_panel(kind, op, unit, ahead, scratch)
        else:
            _wide_panel(kind, op, unit % panels, unit // panels * UNIT_TOKENS, ahead, scratch)
        unit, following = following, fetch_add(taken, 1)


@njit(error_model="numpy")
def _dot_panel(kind: int, op: Record, panel: int, next_panel: int, sums: int) -> None:
    """The products of a panel with few tokens, while the next one is asked for."""
    blocks = carray(memory(op.blocks), (op.block_count,), BLOCK_ROWS)
    size, step = op.row_bytes, op.row_step
    for number in range(2 * panel, min(2 * panel + 2, op.block_count)):
        block = blocks[number]
        ahead = blocks[min(number + 2 * (next_panel - panel), op.block_count - 1)].address
        out = sums + (number - 2 * panel) * _BLOCK_BYTES
        for row in range(0, block.rows, DOT_ROWS):
            start, last = block.address + row * step, block.rows - 1 - row
            _dot_rows(kind, op, start, last, out + 4 * row, ahead + row * size)
    _finish(op, blocks, panel, 0, op.tokens, sums)


@njit(error_model="numpy", inline="always")
def _dot_rows(kind: int, op: Record, rows: int, last: int, out: int, ahead: int) -> None:
    """The products of four rows with at most eight tokens.

    As much as they have is asked for, evenly: memory would idle after a burst.
    """
    x, x_bytes, end = op.x, op.x_bytes, op.tokens - 1
    size, step = op.row_bytes, op.row_step
    if end == 0:
        dot(kind, 1, 4, rows, step, last, x, 0, 0, size, out, ahead)
    elif end == 1:
        dot(kind, 2, 4, rows, step, last, x, x_bytes, 1, size, out, ahead)
    elif end < 4:
        dot(kind, 4, 4, rows, step, last, x, x_bytes, end, size, out, ahead)
    else:
        for token in range(0, end + 1, 4):
            dot(
                kind,
                4,
                2,
                rows,
                step,
                last,
                x + token * x_bytes,
                x_bytes,
                end - token,
                size,
                out + token * PANEL_WORD,
                ahead + token // 2 * size,
            )


@njit(error_model="numpy")
def _wide_panel(kind: int, op: Record, panel: int, first: int, next_panel: int, sums: int) -> None:
    """The products of a panel with a unit's tokens, from ``first`` on."""
    blocks = carray(memory(op.blocks), (op.block_count,), BLOCK_ROWS)
    size, turned, end = op.row_bytes, sums + SUMS_BYTES, min(first + UNIT_TOKENS, op.tokens)
    for number in range(2 * panel, min(2 * panel + 2, op.block_count)):
        block = blocks[number]
        place = turned + number % 2 * _BLOCK_BYTES
        turn(block.address, op.row_step, block.rows - 1, size, place)
    # The next panel's weights are asked for in half blocks where there are many products, in
    # whole ones otherwise: evenly, since memory would idle after a burst.
    pieces = 2 if end - first > 3 * WIDE_TOKENS else 1
    piece, last_piece = 2 * next_panel * pieces, min(2 * next_panel + 2, op.block_count) * pieces
    for token in range(first, end, WIDE_TOKENS):
        ahead = turned
        if piece < last_piece:
            ahead = blocks[piece // pieces].address + piece % pieces * 8 * size
        piece += 1
        last, x = end - token - 1, op.x + token * op.x_bytes
        if last < 4:
            wide(kind, 4, 4, turned, x, op.x_bytes, last, size, sums, ahead)
        elif pieces == 1:
            wide(kind, 8, 4, turned, x, op.x_bytes, last, size, sums, ahead)
        else:
            wide(kind, 8, 2, turned, x, op.x_bytes, last, size, sums, ahead)
        _finish(op, blocks, panel, token, min(WIDE_TOKENS, last + 1), sums)


@njit(error_model="numpy")
def _finish(op: Record, blocks: Record, panel: int, token: int, count: int, sums: int) -> None:
    """Write the sums of a panel and some tokens to the output, after all that belongs to them."""
    item = 4 if op.out_dtype == FLOAT32 else 2
    for number in range(2 * panel, min(2 * panel + (1 if op.gated else 2), op.block_count)):
        block = blocks[number]
        first = sums + (number - 2 * panel) * _BLOCK_BYTES
        _apply(op, number, first, first + count * PANEL_WORD)
        out = op.out + token * op.out_bytes + item * block.column
        residual = 0
        if op.residual:
            residual = op.residual + token * op.residual_bytes + item * block.column
        if block.rows == BLOCK:
            _give(op, count, first, residual, out)
        else:
            _give_part(op, count, first, residual, out, item * block.rows, sums + _SPARE)


@njit(error_model="numpy")
def _apply(op: Record, number: int, first: int, end: int) -> None:
    """Bias, activation and gate, to a block's sums of each token."""
    if op.bias:
        bias = op.bias + number * _BLOCK_BYTES
        for row in range(first, end, PANEL_WORD):
            add_row(0, bias, row, BLOCK)
        if op.gated:
            for row in range(first + _BLOCK_BYTES, end, PANEL_WORD):
                add_row(0, bias + _BLOCK_BYTES, row, BLOCK)
    if op.activation == 1:
        for row in range(first, end, PANEL_WORD):
            activate_row(1, row, BLOCK)
    elif op.activation == 2:
        for row in range(first, end, PANEL_WORD):
            activate_row(2, row, BLOCK)
    elif op.activation == 3:
        for row in range(first, end, PANEL_WORD):
            activate_row(3, row, BLOCK)
    if op.gated:
        for row in range(first, end, PANEL_WORD):
            multiply_row(row, row + _BLOCK_BYTES, BLOCK)


@njit(error_model="numpy")
def _give(op: Record, count: int, row: int, residual: int, out: int) -> None:
    """A block's sums of each token, plus the residual, as elements of the output."""
    step, next_residual = op.out_bytes, op.residual_bytes
    if op.out_dtype == FLOAT32:
        for token in range(count):
            if residual:
                add_row(0, residual + token * next_residual, row + token * PANEL_WORD, BLOCK)
            put_row(0, row + token * PANEL_WORD, out + token * step, BLOCK)
    else:
        for token in range(count):
            if residual:
                add_row(1, residual + token * next_residual, row + token * PANEL_WORD, BLOCK)
            put_row(1, row + token * PANEL_WORD, out + token * step, BLOCK)


@njit(error_model="numpy")
def _give_part(
    op: Record, count: int, row: int, residual: int, out: int, size: int, spare: int
) -> None:
    """The same of a block that has fewer rows, ``size`` bytes: others' memory lies behind them."""
    for token in range(count):
        if residual:
            for place in range(size):
                copy_item(1, residual + token * op.residual_bytes + place, spare + place)
        _give(op, 1, row + token * PANEL_WORD, spare if residual else 0, spare)
        for place in range(size):
            copy_item(1, spare + place, out + token * op.out_bytes + place)
