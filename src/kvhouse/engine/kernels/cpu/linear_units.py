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

#: Tokens that are multiplied at once, otherwise.
WIDE_TOKENS = 12

#: Working memory of a thread for sums, in bytes; turned weights lie behind it.
SUMS_BYTES = DOT_TOKENS * PANEL_WORD + 64

_BLOCK_BYTES = 4 * BLOCK


@njit(error_model="numpy", inline="always")
def linear_units(kind: int, op: Record, taken: int, scratch: int, threads: int) -> None:
    """Take units until none is left."""
    panels = (op.block_count + 1) // 2
    if op.tokens <= DOT_TOKENS:
        panel = fetch_add(taken, 1)
        while panel < panels:
            _dot_panel(kind, op, panel, min(panel + threads, panels - 1), scratch)
            panel = fetch_add(taken, 1)
        return
    groups = (panels + op.unit_panels - 1) // op.unit_panels
    units = groups * ((op.tokens + op.unit_tokens - 1) // op.unit_tokens)
    unit = fetch_add(taken, 1)
    while unit < units:
        first = unit % groups * op.unit_panels
        token = unit // groups * op.unit_tokens
        _wide_panels(
            kind,
            op,
            first,
            min(first + op.unit_panels, panels),
            token,
            min(token + op.unit_tokens, op.tokens),
            scratch,
        )
        unit = fetch_add(taken, 1)


@njit(error_model="numpy")
def _dot_panel(kind: int, op: Record, panel: int, next_panel: int, sums: int) -> None:
    """The products of a panel with few tokens, while the next one is asked for."""
    blocks = carray(memory(op.blocks), (op.block_count,), BLOCK_ROWS)
    last_token = op.tokens - 1
    for number in range(2 * panel, min(2 * panel + 2, op.block_count)):
        block = blocks[number]
        ahead = blocks[min(number + 2 * (next_panel - panel), op.block_count - 1)].address
        out = sums + (number - 2 * panel) * _BLOCK_BYTES
        size = op.row_bytes
        if op.tokens == 1:
            dot(
                kind, 1, block.address, op.row_step, block.rows - 1, op.x, 0, 0, size, out, 0, ahead
            )
        elif op.tokens == 2:
            for row in range(0, BLOCK, 8):
                if row < block.rows:
                    start = row * op.row_step
                    dot(
                        kind,
                        2,
                        block.address + start,
                        op.row_step,
                        block.rows - 1 - row,
                        op.x,
                        op.x_bytes,
                        1,
                        size,
                        out + 4 * row,
                        PANEL_WORD,
                        ahead + row * size,
                    )
        else:
            for row in range(0, min(BLOCK, block.rows), 4):
                start = block.address + row * op.row_step
                asked = ahead + row * size
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
                        asked,
                    )
                    asked = start
    _finish(op, blocks, panel, 0, op.tokens, sums)


@njit(error_model="numpy")
def _wide_panels(
    kind: int, op: Record, first: int, end: int, token: int, last: int, sums: int
) -> None:
    """The products of panels ``first`` to ``end`` with tokens ``token`` to before ``last``."""
    blocks = carray(memory(op.blocks), (op.block_count,), BLOCK_ROWS)
    size = op.row_bytes
    turned, panel_bytes = sums + SUMS_BYTES, size // 4 * PANEL_WORD
    for number in range(2 * first, min(2 * end, op.block_count)):
        block = blocks[number]
        place = turned + number // 2 * panel_bytes - first * panel_bytes
        turn(
            block.address,
            op.row_step,
            block.rows - 1,
            size,
            place + number % 2 * _BLOCK_BYTES,
        )
    while token < last:
        left = last - token
        x = op.x + token * op.x_bytes
        count = 12 if left > 8 else 8 if left > 4 else 4
        for panel in range(first, end):
            weights = turned + (panel - first) * panel_bytes
            if count == 12:
                wide(kind, 12, weights, x, op.x_bytes, left - 1, size // 4, sums, PANEL_WORD)
            elif count == 8:
                wide(kind, 8, weights, x, op.x_bytes, left - 1, size // 4, sums, PANEL_WORD)
            else:
                wide(kind, 4, weights, x, op.x_bytes, left - 1, size // 4, sums, PANEL_WORD)
            _finish(op, blocks, panel, token, min(count, left), sums)
        token += count


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
