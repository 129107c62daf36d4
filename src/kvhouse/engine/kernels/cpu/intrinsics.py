"""What compiled code may call: memory by address, atomics, and the vector code.

Addresses are int64 and strides are in bytes. Formats and numbers of lanes and of rows are
constants at compile time, so that only what a pool needs is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvhouse.engine.kernels.cpu import groups_ir, products_ir, rows_ir
from kvhouse.engine.kernels.cpu.vectors_ir import (
    BYTES,
    F32,
    I32,
    I64,
    ask,
    exp2,
    load,
    splat,
    store,
)

#: What an intrinsic gives Numba: its signature, and what emits its code.
Intrinsic = tuple[Any, Callable[..., ir.Value | None]]

_KINDS = {"p": types.int64, "n": types.int64, "f": types.float32}


def emitted(
    result: types.Type, kinds: str, emit: Callable[..., ir.Value | None], *constants: types.Type
) -> Intrinsic:
    """An intrinsic of constants, then of these kinds of arguments: pointers, numbers, floats.

    The constants have to be in the signature, by which Numba tells one code from another.
    """

    def generate(
        context: Any, b: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
    ) -> ir.Value | None:
        values = [
            b.inttoptr(value, BYTES) if kind == "p" else value
            for kind, value in zip(kinds, arguments[len(constants) :], strict=True)
        ]
        value = emit(b, *values)
        return context.get_dummy_value() if result == types.void else value

    return result(*constants, *(_KINDS[kind] for kind in kinds)), generate


@intrinsic
def memory(context: Any, address: Any) -> Intrinsic:
    """An address as the pointer that ``carray`` takes."""
    return emitted(types.voidptr, "p", lambda _, pointer: pointer)


@intrinsic
def whole_at(context: Any, address: Any) -> Intrinsic:
    """The int64 at an address."""
    return emitted(types.int64, "p", lambda b, pointer: load(b, pointer, I64, 8))


@intrinsic
def float_at(context: Any, address: Any) -> Intrinsic:
    """The float32 at an address."""
    return emitted(types.float32, "p", lambda b, pointer: load(b, pointer, F32, 4))


@intrinsic
def put_float(context: Any, address: Any, value: Any) -> Intrinsic:
    """Put a float32 at an address."""
    return emitted(types.void, "pf", lambda b, pointer, value: store(b, value, pointer, 4))


@intrinsic
def float_of(context: Any, bits: Any) -> Intrinsic:
    """The float32 of these bits."""
    return emitted(types.float32, "n", lambda b, bits: b.bitcast(b.trunc(bits, I32), F32))


@intrinsic
def bits_of(context: Any, value: Any) -> Intrinsic:
    """The bits of a float32."""
    return emitted(types.int64, "f", lambda b, value: b.zext(b.bitcast(value, I32), I64))


@intrinsic(prefer_literal=True)
def copy_item(context: Any, size: Any, source: Any, target: Any) -> Intrinsic:
    """Copy an element of ``size`` bytes, a constant."""
    kind = ir.IntType(8 * size.literal_value)
    return emitted(
        types.void,
        "pp",
        lambda b, source, target: store(b, load(b, source, kind, 1), target, 1),
        size,
    )


@intrinsic
def fetch_add(context: Any, address: Any, value: Any) -> Intrinsic:
    """Add to the int64 at an address, at once for all threads; what it was before."""

    def emit(b: ir.IRBuilder, pointer: ir.Value, value: ir.Value) -> ir.Value:
        return b.atomic_rmw("add", b.bitcast(pointer, ir.PointerType(I64)), value, "seq_cst")

    return emitted(types.int64, "pn", emit)


@intrinsic
def power_of_two(context: Any, exponent: Any) -> Intrinsic:
    """``2 ** exponent`` for an exponent of at most 0."""

    def emit(b: ir.IRBuilder, exponent: ir.Value) -> ir.Value:
        return b.extract_element(exp2(b, splat(b, exponent, 4)), ir.Constant(I32, 0))

    return emitted(types.float32, "f", emit)


@intrinsic
def prefetch(context: Any, address: Any) -> Intrinsic:
    """Ask for the cache line of an address."""
    return emitted(types.void, "p", lambda b, pointer: ask(b, pointer, 1))


@intrinsic
def scale_row(context: Any, row: Any, count: Any, factor: Any) -> Intrinsic:
    """See ``rows_ir.scale_row``."""
    return emitted(types.void, "pnf", rows_ir.scale_row)


@intrinsic
def cap_row(context: Any, row: Any, count: Any, cap: Any, unit: Any) -> Intrinsic:
    """See ``rows_ir.cap_row``."""
    return emitted(types.void, "pnff", rows_ir.cap_row)


@intrinsic
def peak(context: Any, row: Any, count: Any, least: Any) -> Intrinsic:
    """See ``rows_ir.peak``."""
    return emitted(types.float32, "pnf", rows_ir.peak)


@intrinsic(prefer_literal=True)
def exponentials(context: Any, fmt: Any, row: Any, count: Any, offset: Any) -> Intrinsic:
    """See ``rows_ir.exponentials``."""
    number = fmt.literal_value
    return emitted(
        types.float32, "pnf", lambda b, *values: rows_ir.exponentials(b, number, *values), fmt
    )


@intrinsic(prefer_literal=True)
def widen_row(
    context: Any, fmt: Any, source: Any, target: Any, count: Any, factor: Any
) -> Intrinsic:
    """See ``rows_ir.widen_row``."""
    number = fmt.literal_value
    return emitted(
        types.void, "ppnf", lambda b, *values: rows_ir.widen_row(b, number, *values), fmt
    )


@intrinsic(prefer_literal=True)
def narrow_row(
    context: Any, fmt: Any, source: Any, target: Any, count: Any, divisor: Any
) -> Intrinsic:
    """See ``rows_ir.narrow_row``."""
    number = fmt.literal_value
    return emitted(
        types.void, "ppnf", lambda b, *values: rows_ir.narrow_row(b, number, *values), fmt
    )


@intrinsic
def round_group(context: Any, row: Any, codes: Any) -> Intrinsic:
    """See ``groups_ir.round_group``."""
    return emitted(types.int64, "pp", groups_ir.round_group)


@intrinsic(prefer_literal=True)
def score(
    context: Any,
    fmt: Any,
    lanes: Any,
    most: Any,
    rows: Any,
    q: Any,
    q_stride: Any,
    k: Any,
    k_stride: Any,
    size: Any,
    scales: Any,
    out: Any,
    out_stride: Any,
    ahead: Any,
) -> Intrinsic:
    """See ``products_ir.score_function``; of 1 to ``most`` rows."""
    constants = fmt.literal_value, lanes.literal_value

    def emit(b: ir.IRBuilder, *values: ir.Value) -> None:
        functions = [
            products_ir.score_function(b.module, *constants, count)
            for count in range(1, most.literal_value + 1)
        ]
        _call_one_of(b, functions, values[0], values[1:])

    return emitted(types.void, "npnpnnppnp", emit, fmt, lanes, most)


@intrinsic(prefer_literal=True)
def weigh(
    context: Any,
    fmt: Any,
    lanes: Any,
    width: Any,
    most: Any,
    rows: Any,
    p: Any,
    p_stride: Any,
    v: Any,
    v_stride: Any,
    size: Any,
    scales: Any,
    scale_stride: Any,
    out: Any,
    out_stride: Any,
    first: Any,
    end: Any,
    ahead: Any,
) -> Intrinsic:
    """See ``products_ir.weigh_function``; of 1 to ``most`` rows."""
    constants = fmt.literal_value, lanes.literal_value, width.literal_value

    def emit(b: ir.IRBuilder, *values: ir.Value) -> None:
        functions = [
            products_ir.weigh_function(b.module, *constants, count)
            for count in range(1, most.literal_value + 1)
        ]
        _call_one_of(b, functions, values[0], values[1:])

    return emitted(types.void, "npnpnnpnpnnnp", emit, fmt, lanes, width, most)


@intrinsic(prefer_literal=True)
def widen_across(
    context: Any,
    fmt: Any,
    lanes: Any,
    v: Any,
    v_stride: Any,
    size: Any,
    scales: Any,
    scale_stride: Any,
    out: Any,
) -> Intrinsic:
    """See ``products_ir.widen_across``."""
    constants = fmt.literal_value, lanes.literal_value
    return emitted(
        types.void,
        "pnnpnp",
        lambda b, *values: products_ir.widen_across(b, *constants, *values),
        fmt,
        lanes,
    )


def _call_one_of(
    b: ir.IRBuilder,
    functions: Sequence[ir.Function],
    number: ir.Value,
    arguments: Sequence[ir.Value],
) -> None:
    """Call the function of this number, counted from 1."""
    end = b.append_basic_block("called")
    cases = [b.append_basic_block(f"call.{index}") for index in range(len(functions))]
    switch = b.switch(number, end)
    for index, (function, block) in enumerate(zip(functions, cases, strict=True), start=1):
        switch.add_case(ir.Constant(I64, index), block)
        with b.goto_block(block):
            b.call(function, arguments)
            b.branch(end)
    b.position_at_end(end)
