"""LLVM IR of what is done to one row of floats at a time, 16 lanes by 16.

Each is a function of addresses (int64) and a number of elements, a multiple of 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir
from numba.core import cgutils

from kvhouse.engine.kernels.cpu.vectors_ir import (
    F32,
    FP32,
    I16,
    I32,
    I64,
    ITEM_BYTES,
    at,
    exp2,
    load,
    narrow,
    same,
    splat,
    store,
    tanh,
    vector,
    widen,
)

LANES = 16

#: A pointer to the next 16 elements, of so many bytes each.
Next = Callable[[ir.Value, int], ir.Value]


@contextmanager
def sixteens(b: ir.IRBuilder, count: ir.Value) -> Iterator[Next]:
    """Go through ``count`` elements, 16 at a time."""
    step = ir.Constant(I64, LANES)
    with cgutils.for_range_slice(b, ir.Constant(I64, 0), count, step, intp=I64) as (first, _):
        yield lambda base, item: at(b, base, b.mul(first, ir.Constant(I64, item)))


def widen_row(
    b: ir.IRBuilder, fmt: int, source: ir.Value, target: ir.Value, count: ir.Value, factor: ir.Value
) -> None:
    """Elements of fp32, bf16 or fp16, times a factor, as floats."""
    with sixteens(b, count) as pointer:
        value = widen(b, fmt, pointer(source, ITEM_BYTES[fmt]), LANES)
        store(b, b.fmul(value, splat(b, factor, LANES)), pointer(target, 4), 4)


def narrow_row(
    b: ir.IRBuilder,
    fmt: int,
    source: ir.Value,
    target: ir.Value,
    count: ir.Value,
    divisor: ir.Value,
) -> None:
    """Floats over a divisor as elements of a format, not int4."""
    with sixteens(b, count) as pointer:
        value = load(b, pointer(source, 4), vector(F32, LANES), 4)
        steps = b.fdiv(value, splat(b, divisor, LANES))
        store(b, narrow(b, fmt, steps), pointer(target, ITEM_BYTES[fmt]), 1)


def scale_row(b: ir.IRBuilder, row: ir.Value, count: ir.Value, factor: ir.Value) -> None:
    """Multiply a row by a factor."""
    with sixteens(b, count) as pointer:
        value = load(b, pointer(row, 4), vector(F32, LANES), 4)
        store(b, b.fmul(value, splat(b, factor, LANES)), pointer(row, 4), 4)


def cap_row(b: ir.IRBuilder, row: ir.Value, count: ir.Value, cap: ir.Value, unit: ir.Value) -> None:
    """Each score ``s`` becomes ``unit * cap * tanh(s / cap)``."""
    with sixteens(b, count) as pointer:
        value = load(b, pointer(row, 4), vector(F32, LANES), 4)
        bent = tanh(b, b.fdiv(value, splat(b, cap, LANES)))
        store(b, b.fmul(bent, splat(b, b.fmul(cap, unit), LANES)), pointer(row, 4), 4)


def peak(b: ir.IRBuilder, row: ir.Value, count: ir.Value, least: ir.Value) -> ir.Value:
    """The largest element, or ``least`` if that is larger; NaN is passed over."""
    best = cgutils.alloca_once(b, vector(F32, LANES))
    b.store(splat(b, least, LANES), best)
    with sixteens(b, count) as pointer:
        value = load(b, pointer(row, 4), vector(F32, LANES), 4)
        so_far = b.load(best, typ=vector(F32, LANES))
        b.store(b.select(b.fcmp_ordered(">", value, so_far), value, so_far), best)
    return fold(b, b.load(best, typ=vector(F32, LANES)), _larger)


def exponentials(
    b: ir.IRBuilder, fmt: int, row: ir.Value, count: ir.Value, offset: ir.Value
) -> ir.Value:
    """Each score ``s`` becomes ``2 ** (s - offset)``, fp32 or bf16; their sum before rounding.

    Those of two bytes lie in the first half of the row.
    """
    total = cgutils.alloca_once(b, vector(F32, LANES))
    b.store(same(F32, 0.0, LANES), total)
    with sixteens(b, count) as pointer:
        value = load(b, pointer(row, 4), vector(F32, LANES), 4)
        power = exp2(b, b.fsub(value, splat(b, offset, LANES)), 7 if fmt == FP32 else 4)
        kept = power if fmt == FP32 else _nearest_bf16(b, power)
        store(b, kept, pointer(row, ITEM_BYTES[fmt]), 2)
        b.store(b.fadd(b.load(total, typ=vector(F32, LANES)), power), total)
    return fold(b, b.load(total, typ=vector(F32, LANES)), lambda b, x, y: b.fadd(x, y))


def _nearest_bf16(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Floats that are not negative as bfloat16, halves rounded up."""
    bits = b.add(b.bitcast(value, vector(I32, LANES)), same(I32, 0x8000, LANES))
    return b.trunc(b.lshr(bits, same(I32, 16, LANES)), vector(I16, LANES))


def _larger(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def fold(
    b: ir.IRBuilder,
    value: ir.Value,
    join: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value],
) -> ir.Value:
    """Join all lanes into one: the last half to the first, and so on."""
    lanes: int = value.type.count
    nothing = ir.Constant(value.type, ir.Undefined)
    while lanes > 1:
        lanes //= 2
        kind = ir.VectorType(I32, lanes)
        halves: Sequence[ir.Value] = [
            b.shuffle_vector(value, nothing, ir.Constant(kind, list(range(low, low + lanes))))
            for low in (0, lanes)
        ]
        value = join(b, *halves)
        nothing = ir.Constant(value.type, ir.Undefined)
    return b.extract_element(value, ir.Constant(I32, 0))
