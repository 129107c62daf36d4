"""LLVM IR that rounds a group of int4, all of it in registers.

It is the arithmetic of ``kvhouse.engine.encoding``, in its order.
"""

from __future__ import annotations

from llvmlite import ir

from kvhouse.engine.encoding import FACTORS, ZERO_CODE
from kvhouse.engine.kernels.cpu.products_ir import GROUP
from kvhouse.engine.kernels.cpu.rows_ir import fold
from kvhouse.engine.kernels.cpu.vectors_ir import (
    BF16,
    F32,
    I8,
    I32,
    I64,
    float_of_bf16,
    integers,
    load,
    narrow,
    nearest,
    same,
    splat,
    store,
    vector,
)

_SIGN, _INFINITY, _NAN_SCALE = 0x80000000, 0x7F800000, 0x7FC0


def round_group(b: ir.IRBuilder, row: ir.Value, codes: ir.Value) -> ir.Value:
    """Put the codes of ``GROUP`` floats, two to a byte, at ``codes``; the scale's bits, int64."""
    value = load(b, row, vector(F32, GROUP), 4)
    finite, peak = _peak(b, b.bitcast(value, vector(I32, GROUP)))
    value = b.select(finite, value, same(F32, 0.0, GROUP))
    tried = _scales(b, peak)
    scale, *others = (b.extract_element(tried, ir.Constant(I32, n)) for n in range(len(FACTORS)))
    least = _error(b, value, scale)
    for other in others:
        error = _error(b, value, other)
        better = b.fcmp_ordered("<", error, least)
        scale, least = b.select(better, other, scale), b.select(better, error, least)
    _put_codes(b, _levels(b, value, scale), codes)
    # Adding 0 takes the sign off a zero.
    bits = b.bitcast(b.fadd(scale, ir.Constant(F32, 0.0)), I32)
    kept = b.select(finite, b.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, _NAN_SCALE))
    return b.zext(kept, I64)


def _peak(b: ir.IRBuilder, bits: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Whether all elements are finite, and if so the one of largest magnitude; else 0.

    Bits without their sign are in the order of the magnitudes, NaN above all. With it, as
    integers, those of positive floats are above all of negative ones: so the largest is the peak
    unless it is negative.
    """
    size = fold(b, b.and_(bits, same(I32, _SIGN - 1, GROUP)), _larger)
    most = fold(b, bits, _larger)
    finite = b.icmp_signed("<", size, ir.Constant(I32, _INFINITY))
    sign = b.select(b.icmp_signed("==", most, size), ir.Constant(I32, 0), ir.Constant(I32, _SIGN))
    peak = b.select(finite, b.or_(size, sign), ir.Constant(I32, 0))
    return finite, b.bitcast(peak, F32)


def _scales(b: ir.IRBuilder, peak: ir.Value) -> ir.Value:
    """The scales to be tried, a lane each."""
    lanes = len(FACTORS)
    factors = ir.Constant(vector(F32, lanes), [factor / -8 for factor in FACTORS])
    return float_of_bf16(b, narrow(b, BF16, b.fmul(splat(b, peak, lanes), factors)))


def _levels(b: ir.IRBuilder, value: ir.Value, scale: ir.Value) -> ir.Value:
    """What the elements are rounded to, in steps."""
    zero = b.fcmp_ordered("==", scale, ir.Constant(F32, 0.0))
    divisor = b.select(zero, ir.Constant(F32, 1.0), scale)
    return nearest(b, b.fdiv(value, splat(b, divisor, GROUP)), -ZERO_CODE, ZERO_CODE - 1)


def _error(b: ir.IRBuilder, value: ir.Value, scale: ir.Value) -> ir.Value:
    """The sum of the squared errors that a scale makes."""
    kept = b.fmul(_levels(b, value, scale), splat(b, scale, GROUP))
    error = b.fsub(value, kept)
    return fold(b, b.fmul(error, error), lambda b, x, y: b.fadd(x, y))


def _put_codes(b: ir.IRBuilder, levels: ir.Value, target: ir.Value) -> None:
    codes = integers(b, b.fadd(levels, same(F32, float(ZERO_CODE), GROUP)), I8)
    half = GROUP // 2
    low, high = (
        b.shuffle_vector(codes, codes, ir.Constant(vector(I32, half), list(lanes)))
        for lanes in (range(half), range(half, GROUP))
    )
    store(b, b.or_(low, b.shl(high, same(I8, 4, half))), target, 1)


def _larger(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed(">", x, y), x, y)
