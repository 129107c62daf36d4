"""LLVM IR of what happens to a few vector lanes: widening, narrowing, exponentials.

Written out as vectors, since no auto-vectoriser can be relied on to find them; LLVM cuts vectors
that the machine has no registers for into those that it has. No fast-math flag is set anywhere:
NaN and infinities keep their meaning.
"""

from __future__ import annotations

from math import factorial, log

from llvmlite import ir
from numba.core import cgutils

from kvhouse.engine.encoding import ZERO_CODE

F32, F16 = ir.FloatType(), ir.HalfType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
BYTES = ir.PointerType(I8)

#: Bytes of a cache line.
LINE = 64

#: Numbers of the KV formats, and of the dtypes that queries, keys and values come in.
FORMAT_NUMBERS = {"fp32": 0, "bf16": 1, "fp16": 2, "fp8": 3, "int8": 4, "int4": 5}
FP32, BF16, FP16, FP8, INT8, INT4 = range(6)

#: Bytes of an element; of int4, of the two that share one.
ITEM_BYTES = (4, 2, 2, 1, 1, 1)

#: What a scale is multiplied by to suit what ``widen`` gives: fp8 is widened as a float16, whose
#: exponent is biased by 8 more; int4 in sixteenths of a step.
_SCALE_FACTORS = {FP8: 256.0, INT8: 1.0, INT4: 0.0625}

#: 1.5 * 2**23: adding it leaves a float's nearest integer in its last bits.
_ROUNDER = 12582912.0


def vector(element: ir.Type, lanes: int) -> ir.VectorType:
    """The type of so many lanes."""
    return ir.VectorType(element, lanes)


def splat(b: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """A scalar in every lane."""
    kind = vector(value.type, lanes)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    mask = ir.Constant(vector(I32, lanes), [0] * lanes)
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)


def same(element: ir.Type, value: float, lanes: int) -> ir.Constant:
    """A constant in every lane."""
    return ir.Constant(vector(element, lanes), [value] * lanes)


def at(b: ir.IRBuilder, base: ir.Value, offset: ir.Value) -> ir.Value:
    """The pointer ``offset`` bytes behind ``base``."""
    return b.gep(base, [offset], source_etype=I8)


def load(b: ir.IRBuilder, pointer: ir.Value, kind: ir.Type, align: int) -> ir.Value:
    """What lies at a pointer."""
    return b.load(b.bitcast(pointer, ir.PointerType(kind)), align=align, typ=kind)


def store(b: ir.IRBuilder, value: ir.Value, pointer: ir.Value, align: int) -> None:
    """Put a value at a pointer."""
    b.store(value, b.bitcast(pointer, ir.PointerType(value.type)), align=align)


def ask(b: ir.IRBuilder, pointer: ir.Value, count: int) -> None:
    """Ask for ``count`` bytes that will be read soon, line by line."""
    kind = ir.FunctionType(ir.VoidType(), [BYTES, I32, I32, I32])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    # To be read, to be kept close, data.
    hints = [ir.Constant(I32, hint) for hint in (0, 3, 1)]
    for offset in range(0, count, LINE):
        b.call(function, [at(b, pointer, ir.Constant(I64, offset)), *hints])


def call(b: ir.IRBuilder, name: str, *arguments: ir.Value) -> ir.Value:
    """One of LLVM's own functions on vectors of one type."""
    kind = arguments[0].type
    signature = ir.FunctionType(kind, [kind] * len(arguments))
    full = f"{name}.v{kind.count}f32"
    return b.call(cgutils.get_or_insert_function(b.module, signature, full), arguments)


def multiply_add(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """``x * y + z``, fused where the machine can."""
    return call(b, "llvm.fmuladd", x, y, z)


def float_of_bf16(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The floats whose upper halves these int16 are."""
    lanes = value.type.count
    bits = b.shl(b.zext(value, vector(I32, lanes)), same(I32, 16, lanes))
    return b.bitcast(bits, vector(F32, lanes))


def widen(b: ir.IRBuilder, fmt: int, pointer: ir.Value, lanes: int) -> ir.Value:
    """Elements of a format, not int4, as floats; of one with scales, before its scale."""
    if fmt == FP32:
        return load(b, pointer, vector(F32, lanes), 4)
    if fmt == BF16:
        return float_of_bf16(b, load(b, pointer, vector(I16, lanes), 2))
    if fmt == FP16:
        return b.fpext(load(b, pointer, vector(F16, lanes), 2), vector(F32, lanes))
    if fmt == FP8:
        signed = b.sext(load(b, pointer, vector(I8, lanes), 1), vector(I16, lanes))
        bits = b.and_(b.shl(signed, same(I16, 7, lanes)), same(I16, 0xBFFF, lanes))
        return b.fpext(b.bitcast(bits, vector(F16, lanes)), vector(F32, lanes))
    signed = b.sext(load(b, pointer, vector(I8, lanes), 1), vector(I32, lanes))
    return b.sitofp(signed, vector(F32, lanes))


def widen_pairs(b: ir.IRBuilder, pointer: ir.Value, lanes: int) -> tuple[ir.Value, ir.Value]:
    """The low and the high codes of bytes of int4, as floats before their scale.

    A code becomes bits 4 to 7 of the float 2**23, whose last bit counts ones.
    """
    bits = b.zext(load(b, pointer, vector(I8, lanes), 1), vector(I32, lanes))
    halves = []
    for code in (b.shl(bits, same(I32, 4, lanes)), bits):
        mantissa = b.and_(code, same(I32, 0xF0, lanes))
        value = b.bitcast(b.or_(mantissa, same(I32, 0x4B000000, lanes)), vector(F32, lanes))
        halves.append(b.fsub(value, same(F32, 2**23 + 16 * ZERO_CODE, lanes)))
    return halves[0], halves[1]


def widen_scales(b: ir.IRBuilder, fmt: int, pointer: ir.Value, lanes: int) -> ir.Value:
    """Scales of a format, for what ``widen`` gives of it."""
    factor = _SCALE_FACTORS[fmt]
    scales = widen(b, BF16, pointer, lanes)
    return scales if factor == 1.0 else b.fmul(scales, same(F32, factor, lanes))


def narrow(b: ir.IRBuilder, fmt: int, value: ir.Value) -> ir.Value:
    """Floats as elements of fp32, bf16 or fp16, rounded to even; of fp8 and int8, steps as codes.

    Steps are values over their scale, and not NaN.
    """
    lanes = value.type.count
    if fmt == FP32:
        return value
    if fmt == FP16:
        return b.fptrunc(value, vector(F16, lanes))
    if fmt == FP8:
        return _narrow_fp8(b, value)
    if fmt == INT8:
        return integers(b, nearest(b, value, -127, 127), I8)
    bits = b.bitcast(value, vector(I32, lanes))
    odd = b.and_(b.lshr(bits, same(I32, 16, lanes)), same(I32, 1, lanes))
    rounded = b.add(bits, b.add(odd, same(I32, 0x7FFF, lanes)))
    nan = b.fcmp_unordered("uno", value, value)
    kept = b.select(nan, b.or_(bits, same(I32, 0x400000, lanes)), rounded)
    return b.trunc(b.lshr(kept, same(I32, 16, lanes)), vector(I16, lanes))


def nearest(b: ir.IRBuilder, value: ir.Value, least: int, most: int) -> ir.Value:
    """The nearest integers, kept within bounds; still floats."""
    lanes = value.type.count
    whole = call(b, "llvm.rint", value)
    for bound, order in ((least, "<"), (most, ">")):
        limit = same(F32, float(bound), lanes)
        whole = b.select(b.fcmp_ordered(order, whole, limit), limit, whole)
    return whole


def integers(b: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Floats that are integers as such, of at most 32 bits."""
    lanes = value.type.count
    wide = b.fptosi(value, vector(I32, lanes))
    return wide if kind == I32 else b.trunc(wide, vector(kind, lanes))


def _narrow_fp8(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Floats of at most 448 as e4m3, rounded to even.

    Above 2**-6, where it has an exponent of its own, its bits are those of a float cut off and
    its exponent's bias, 127, brought down to 7; below it counts 512ths.
    """
    lanes = value.type.count
    bits = b.bitcast(value, vector(I32, lanes))
    sign = b.and_(b.lshr(bits, same(I32, 24, lanes)), same(I32, 0x80, lanes))
    size = b.and_(bits, same(I32, 0x7FFFFFFF, lanes))
    odd = b.and_(b.lshr(size, same(I32, 20, lanes)), same(I32, 1, lanes))
    rounded = b.lshr(b.add(size, b.add(odd, same(I32, 0x7FFFF, lanes))), same(I32, 20, lanes))
    normal = b.sub(rounded, same(I32, (127 - 7) << 3, lanes))
    small = b.icmp_unsigned("<", size, same(I32, (127 - 6) << 23, lanes))
    tiny = b.select(small, b.bitcast(size, vector(F32, lanes)), same(F32, 0.0, lanes))
    counted = integers(b, nearest(b, b.fmul(tiny, same(F32, 512.0, lanes)), 0, 8), I32)
    return b.trunc(b.or_(b.select(small, counted, normal), sign), vector(I8, lanes))


def exp2(b: ir.IRBuilder, x: ir.Value, degree: int = 7) -> ir.Value:
    """Two to the power of ``x <= 0``, to a few units in the last place; 0 below -125.

    The nearest integer goes into the exponent; what is left, at most a half either way, into the
    series of the exponential, up to ``degree``: 4 is exact to 2**-14, enough for bfloat16.
    """
    lanes = x.type.count
    whole = b.fadd(x, same(F32, _ROUNDER, lanes))
    rest = b.fsub(x, b.fsub(whole, same(F32, _ROUNDER, lanes)))
    series = same(F32, log(2) ** degree / factorial(degree), lanes)
    for power in range(degree - 1, -1, -1):
        series = multiply_add(b, series, rest, same(F32, log(2) ** power / factorial(power), lanes))
    exponent = b.shl(b.bitcast(whole, vector(I32, lanes)), same(I32, 23, lanes))
    bits = b.add(b.bitcast(series, vector(I32, lanes)), exponent)
    value = b.bitcast(bits, vector(F32, lanes))
    small = b.fcmp_ordered("<", x, same(F32, -125.0, lanes))
    value = b.select(small, same(F32, 0.0, lanes), value)
    return b.select(b.fcmp_unordered("uno", x, x), x, value)


def tanh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The hyperbolic tangent: by an exponential, or near 0 by its series."""
    lanes = x.type.count
    size = call(b, "llvm.fabs", x)
    shrunk = exp2(b, b.fmul(size, same(F32, -2 / log(2), lanes)))
    one = same(F32, 1.0, lanes)
    far = b.fdiv(b.fsub(one, shrunk), b.fadd(one, shrunk))
    square = b.fmul(size, size)
    series = same(F32, 62 / 2835, lanes)
    for coefficient in (-17 / 315, 2 / 15, -1 / 3, 1.0):
        series = multiply_add(b, series, square, same(F32, coefficient, lanes))
    near = b.fcmp_ordered("<", size, same(F32, 0.25, lanes))
    value = b.select(near, b.fmul(series, size), far)
    return call(b, "llvm.copysign", value, x)
