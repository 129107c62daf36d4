"""Norms and rotary embeddings, compiled: a few tokens after the others."""

from __future__ import annotations

import numpy as np
from numba import njit

from kvhouse.engine.kernels.cpu.helpers import Record
from kvhouse.engine.kernels.cpu.intrinsics import fetch_add, scale_row, whole_at, widen_row
from kvhouse.engine.kernels.cpu.program_fields import FLOAT32
from kvhouse.engine.kernels.cpu.program_intrinsics import (
    add_row,
    multiply_row,
    put_row,
    rotate_pairs,
    row_sum,
    shift_row,
    square_sum,
)

#: Tokens of a unit.
UNIT_TOKENS = 4


@njit(error_model="numpy", inline="always")
def norm_units(op: Record, taken: int, scratch: int) -> None:
    """Take tokens until none is left."""
    first = fetch_add(taken, UNIT_TOKENS)
    while first < op.tokens:
        for token in range(first, min(first + UNIT_TOKENS, op.tokens)):
            source = whole_at(op.index + 8 * token) if op.index else token
            for head in range(op.heads):
                _norm(op, source, token, head * op.head_bytes, scratch)
        first = fetch_add(taken, UNIT_TOKENS)


@njit(error_model="numpy")
def _norm(op: Record, source: int, token: int, within: int, row: int) -> None:
    """One vector over its root mean square, or over its deviation from its mean."""
    size, one = op.size, np.float32(1)
    x = op.x + source * op.x_bytes + within
    if op.x_dtype == FLOAT32:
        widen_row(0, x, row, size, one)
    else:
        widen_row(1, x, row, size, one)
    if op.centred:
        shift_row(row, size, -row_sum(row, size) / np.float32(size))
    mean = square_sum(row, size) / np.float32(size)
    scale_row(row, size, one / np.sqrt(mean + op.epsilon))
    if op.weight:
        multiply_row(row, op.weight, size)
    if op.bias:
        add_row(0, op.bias, row, size)
    out = op.out + token * op.out_bytes + within
    residual = op.residual + token * op.residual_bytes + within
    if op.out_dtype == FLOAT32:
        if op.residual:
            add_row(0, residual, row, size)
        put_row(0, row, out, size)
    else:
        if op.residual:
            add_row(1, residual, row, size)
        put_row(1, row, out, size)


@njit(error_model="numpy", inline="always")
def rotary_units(op: Record, taken: int) -> None:
    """Take tokens until none is left."""
    first = fetch_add(taken, UNIT_TOKENS)
    while first < op.tokens:
        for token in range(first, min(first + UNIT_TOKENS, op.tokens)):
            _rotate(op, token)
        first = fetch_add(taken, UNIT_TOKENS)


@njit(error_model="numpy")
def _rotate(op: Record, token: int) -> None:
    """All heads of a token, in place."""
    half = op.size // 2
    offset = token * op.table_bytes
    for head in range(op.heads):
        x = op.x + token * op.x_bytes + head * op.head_bytes
        if op.x_dtype == FLOAT32:
            rotate_pairs(0, x, op.cosines + offset, op.sines + offset, half, 4 * half)
        else:
            rotate_pairs(1, x, op.cosines + offset, op.sines + offset, half, 2 * half)
