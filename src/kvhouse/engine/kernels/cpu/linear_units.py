"""Matrix products, compiled: one unit of an operation's work after the other.

A unit is a *panel* of two blocks of weights, or several panels, with all tokens or some of them;
the threads take units until none is left. With few tokens a product is a read of the weights, and
each panel is read once for all of them.
"""

from __future__ import annotations

from numba import carray, njit

from kvhouse.engine.kernels.cpu.helpers import Record
from kvhouse.engine.kernels.cpu.intrinsics import copy_item, fetch_add, memory
from kvhouse.engine.kernels.cpu.linear_ir import BLOCK, PANEL_WORD
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
DOT_TOKENS = 16

#: Tokens that are multiplied at once, otherwise: with a panel's 32 rows enough sums to keep the
#: machine's multipliers busy, and no more pointers than it has registers for.
WIDE_TOKENS = 8

#: Working memory of a thread for sums, in bytes; turned weights lie behind it.
SUMS_BYTES = DOT_TOKENS * PANEL_WORD + 64

_BLOCK_BYTES = 4 * BLOCK


@njit(error_model="numpy", inline="always")
def linear_units(kind: int, op: Record, taken: int, scratch: int) -> None:
    """Take units until none is left."""
    panels = (op.block_count + 1) // 2
    few = op.tokens <= DOT_TOKENS
    groups = panels if few else (panels + op.unit_panels - 1) // op.unit_panels
    units = groups if few else groups * ((op.tokens + op.unit_tokens - 1) // op.unit_tokens)
    # The next unit is taken before it is begun, so that its weights can be asked for.
    unit, following = fetch_add(taken, 1), fetch_add(taken, 1)
    while unit < units:
        ahead = min(following, units - 1)
        if few:
            _dot_panel(kind, op, unit, ahead, scratch)
        else:
            _wide_panels(kind, op, groups, unit, ahead, scratch)
        unit, following = following, fetch_add(taken, 1)


@njit(error_model="numpy")
def _dot_panel(kind: int, op: Record, panel: int, next_panel: int, sums: int) -> None:
    """The products of a panel with few tokens, while the next one is asked for."""
    blocks = carray(memory(op.blocks), (op.block_count,), BLOCK_ROWS)
    size, last_token = op.row_bytes, op.tokens - 1
    for number in range(2 * panel, min(2 * panel + 2, op.block_count)):
        block = blocks[number]
        asked = blocks[min(number + 2 * (next_panel - panel), op.block_count - 1)].address
        out = sums + (number - 2 * panel) * _BLOCK_BYTES
        if last_token == 0:
            last = block.rows - 1
            dot(kind, 1, block.address, op.row_step, last, op.x, 0, 0, size, out, 0, asked)
        elif last_token == 1:
            for row in range(0, block.rows, 8):
                dot(
                    kind,
                    2,
                    block.address + row * op.row_step,
                    op.row_step,
                    block.rows - 1 - row,
                    op.x,
                    op.x_bytes,
                    last_token,
                    size,
                    out + 4 * row,
                    PANEL_WORD,
                    asked + row * size,
                )
        else:
            for row in range(0, block.rows, 4):
                start, ahead = block.address + row * op.row_step, asked + row * size
                for token in range(0, op.tokens, 4):
                    dot(
                        kind,
                        4,
                        start,
                        op.row_step,
                        block.rows - 1 - row,
                        op.x + token * op.x_bytes,
                        op.x_bytes,
                        last_token - token,
                        size,
                        out + 4 * row + token * PANEL_WORD,
                        PANEL_WORD,
                        ahead,
                    )
                    ahead = start
    _finish(op, blocks, panel, 0, op.tokens, sums)


@njit(error_model="numpy")
def _wide_panels(kind: int, op: Record, groups: int, unit: int, following: int, sums: int) -> None:
    """The products of a unit's panels with its tokens."""
    blocks = carray(memory(op.blocks), (op.block_count,), BLOCK_ROWS)
    first = unit % groups * op.unit_panels
    end = min(2 * (first + op.unit_panels), op.block_count)
    token = unit // groups * op.unit_tokens
    last = min(token + op.unit_tokens, op.tokens)
    size = op.row_bytes
    turned, panel_bytes = sums + SUMS_BYTES, size // 4 * PANEL_WORD
    for number in range(2 * first, end):
        block = blocks[number]
        place = turned + (number // 2 - first) * panel_bytes + number % 2 * _BLOCK_BYTES
        turn(block.address, op.row_step, block.rows - 1, size, place)
    asked = 2 * (following % groups) * op.unit_panels
    asked_end = min(asked + 2 * op.unit_panels, op.block_count)
    while token < last:
        left, x = last - token, op.x + token * op.x_bytes
        for panel in range(first, (end + 1) // 2):
            weights = turned + (panel - first) * panel_bytes
            ahead = blocks[asked].address if asked < asked_end else weights
            asked += 1
            if left > 4:
                wide(kind, 8, weights, x, op.x_bytes, left - 1, size // 4, sums, PANEL_WORD, ahead)
            else:
                wide(kind, 4, weights, x, op.x_bytes, left - 1, size // 4, sums, PANEL_WORD, ahead)
            _finish(op, blocks, panel, token, min(WIDE_TOKENS, left), sums)
        token += WIDE_TOKENS


@njit(error_model="numpy")
def _finish(op: Record, blocks: Record, panel: int, token: int, count: int, sums: int) -> None:
    """Write the sums of a panel and some tokens to the output, after all that belongs to them."""
    item = 4 if op.out_dtype == FLOAT32 else 2
    for number in range(2 * panel, min(2 * panel + (1 if op.gated else 2), op.block_count)):
        block = blocks[number]
        for turn_ in range(count):
            row = sums + turn_ * PANEL_WORD + (number - 2 * panel) * _BLOCK_BYTES
            _finish_row(op, number, row)
            offset = item * block.column
            out = op.out + (token + turn_) * op.out_bytes + offset
            residual = op.residual + (token + turn_) * op.residual_bytes + offset
            if block.rows < BLOCK:
                _give_part(op, row, residual, out, block.rows, sums + SUMS_BYTES - 64)
            else:
                if op.out_dtype == FLOAT32:
                    if op.residual:
                        add_row(0, residual, row, BLOCK)
                    put_row(0, row, out, BLOCK)
                else:
                    if op.residual:
                        add_row(1, residual, row, BLOCK)
                    put_row(1, row, out, BLOCK)


@njit(error_model="numpy", inline="always")
def _finish_row(op: Record, number: int, row: int) -> None:
    """Bias, activation and gate."""
    if op.bias:
        add_row(0, op.bias + number * _BLOCK_BYTES, row, BLOCK)
    if op.activation == 1:
        activate_row(1, row, BLOCK)
    elif op.activation == 2:
        activate_row(2, row, BLOCK)
    elif op.activation == 3:
        activate_row(3, row, BLOCK)
    if op.gated:
        if op.bias:
            add_row(0, op.bias + (number + 1) * _BLOCK_BYTES, row + _BLOCK_BYTES, BLOCK)
        multiply_row(row, row + _BLOCK_BYTES, BLOCK)


@njit(error_model="numpy")
def _give_part(op: Record, row: int, residual: int, out: int, rows: int, spare: int) -> None:
    """The same of a block that has fewer rows: what lies behind them is nobody's business."""
    if op.out_dtype == FLOAT32:
        if op.residual:
            for place in range(0, 4 * rows, 4):
                copy_item(4, residual + place, spare + place)
            add_row(0, spare, row, BLOCK)
        put_row(0, row, spare, BLOCK)
        for place in range(0, 4 * rows, 4):
            copy_item(4, spare + place, out + place)
    else:
        if op.residual:
            for place in range(0, 2 * rows, 2):
                copy_item(2, residual + place, spare + place)
            add_row(1, spare, row, BLOCK)
        put_row(1, row, spare, BLOCK)
        for place in range(0, 2 * rows, 2):
            copy_item(2, spare + place, out + place)
