"""LLVM IR of what a decoder does to one token's vector between its matrix products.

Rows are float32 in working memory, of a multiple of 16 elements, and changed in place.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi, sqrt

from llvmlite import ir
from numba.core import cgutils

from kvhouse.engine.kernels.cpu.rows_ir import LANES, fold, sixteens
from kvhouse.engine.kernels.cpu.vectors_ir import (
    F32,
    ITEM_BYTES,
    call,
    exp2,
    load,
    multiply_add,
    narrow,
    same,
    splat,
    store,
    tanh,
    vector,
    widen,
)

_FLOATS = vector(F32, LANES)

#: erf(x) = 1 - (a1 t + ... + a5 t^5) exp(-x^2) for x >= 0 and t = 1 / (1 + p x), within 1.5e-7:
#: Abramowitz and Stegun 1964, 7.1.26.
_ERF_P = 0.3275911
_ERF_A = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)


def add_row(b: ir.IRBuilder, fmt: int, source: ir.Value, row: ir.Value, count: ir.Value) -> None:
    """Add elements of a format to a row."""
    with sixteens(b, count) as pointer:
        value = widen(b, fmt, pointer(source, ITEM_BYTES[fmt]), LANES)
        target = pointer(row, 4)
        store(b, b.fadd(load(b, target, _FLOATS, 4), value), target, 4)


def put_row(b: ir.IRBuilder, fmt: int, row: ir.Value, target: ir.Value, count: ir.Value) -> None:
    """A row as elements of a format."""
    with sixteens(b, count) as pointer:
        value = load(b, pointer(row, 4), _FLOATS, 4)
        store(b, narrow(b, fmt, value), pointer(target, ITEM_BYTES[fmt]), 1)


def multiply_row(b: ir.IRBuilder, row: ir.Value, other: ir.Value, count: ir.Value) -> None:
    """Multiply a row by another, element by element."""
    with sixteens(b, count) as pointer:
        target = pointer(row, 4)
        factor = load(b, pointer(other, 4), _FLOATS, 4)
        store(b, b.fmul(load(b, target, _FLOATS, 4), factor), target, 4)


def shift_row(b: ir.IRBuilder, row: ir.Value, count: ir.Value, offset: ir.Value) -> None:
    """Add a number to each element."""
    with sixteens(b, count) as pointer:
        target = pointer(row, 4)
        value = load(b, target, _FLOATS, 4)
        store(b, b.fadd(value, splat(b, offset, LANES)), target, 4)


def row_sum(b: ir.IRBuilder, row: ir.Value, count: ir.Value) -> ir.Value:
    """The sum of a row."""
    return _total(b, row, count, lambda value, total: b.fadd(value, total))


def square_sum(b: ir.IRBuilder, row: ir.Value, count: ir.Value) -> ir.Value:
    """The sum of the squares of a row."""
    return _total(b, row, count, lambda value, total: multiply_add(b, value, value, total))


def activate_row(b: ir.IRBuilder, activation: int, row: ir.Value, count: ir.Value) -> None:
    """Apply one of ``program_fields.ACTIVATIONS``."""
    function = {1: _silu, 2: _gelu_tanh, 3: _gelu}[activation]
    with sixteens(b, count) as pointer:
        target = pointer(row, 4)
        store(b, function(b, load(b, target, _FLOATS, 4)), target, 4)


def rotate_pairs(
    b: ir.IRBuilder,
    fmt: int,
    row: ir.Value,
    cosines: ir.Value,
    sines: ir.Value,
    half: ir.Value,
    half_bytes: ir.Value,
) -> None:
    """Turn each element of the first half of a vector and its partner in the second one."""
    other = b.gep(row, [half_bytes], source_etype=ir.IntType(8))
    with sixteens(b, half) as pointer:
        item = ITEM_BYTES[fmt]
        x, y = (widen(b, fmt, pointer(part, item), LANES) for part in (row, other))
        cosine, sine = (load(b, pointer(table, 4), _FLOATS, 4) for table in (cosines, sines))
        turned = b.fsub(b.fmul(x, cosine), b.fmul(y, sine))
        store(b, narrow(b, fmt, turned), pointer(row, item), 1)
        turned = b.fadd(b.fmul(y, cosine), b.fmul(x, sine))
        store(b, narrow(b, fmt, turned), pointer(other, item), 1)


def _total(
    b: ir.IRBuilder,
    row: ir.Value,
    count: ir.Value,
    join: Callable[[ir.Value, ir.Value], ir.Value],
) -> ir.Value:
    total = cgutils.alloca_once(b, _FLOATS)
    b.store(same(F32, 0.0, LANES), total)
    with sixteens(b, count) as pointer:
        value = load(b, pointer(row, 4), _FLOATS, 4)
        b.store(join(value, b.load(total, typ=_FLOATS)), total)
    return fold(b, b.load(total, typ=_FLOATS), lambda b, x, y: b.fadd(x, y))


def _silu(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """``x / (1 + exp(-x))``, by the exponential of a number that is not positive."""
    one = same(F32, 1.0, LANES)
    small = exp2(b, b.fmul(call(b, "llvm.fabs", x), same(F32, -1 / log(2), LANES)))
    negative = b.fcmp_ordered("<", x, same(F32, 0.0, LANES))
    above = b.select(negative, small, one)
    return b.fdiv(b.fmul(x, above), b.fadd(one, small))


def _gelu_tanh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))``."""
    cube = b.fmul(b.fmul(x, x), same(F32, 0.044715, LANES))
    inner = b.fmul(multiply_add(b, cube, x, x), same(F32, sqrt(2 / pi), LANES))
    half = b.fmul(x, same(F32, 0.5, LANES))
    return multiply_add(b, half, tanh(b, inner), half)


def _gelu(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """``x / 2 * (1 + erf(x / sqrt(2)))``."""
    one = same(F32, 1.0, LANES)
    size = b.fmul(call(b, "llvm.fabs", x), same(F32, sqrt(0.5), LANES))
    t = b.fdiv(one, multiply_add(b, size, same(F32, _ERF_P, LANES), one))
    series = same(F32, _ERF_A[0], LANES)
    for coefficient in _ERF_A[1:]:
        series = multiply_add(b, series, t, same(F32, coefficient, LANES))
    fall = exp2(b, b.fmul(b.fmul(size, size), same(F32, -1 / log(2), LANES)))
    error = call(b, "llvm.copysign", b.fsub(one, b.fmul(series, fall)), x)
    half = b.fmul(x, same(F32, 0.5, LANES))
    return multiply_add(b, half, error, half)
