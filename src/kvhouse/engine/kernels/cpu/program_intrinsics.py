"""Vector code that programs are made of, for Numba: see ``intrinsics``."""

from __future__ import annotations

import os
import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvhouse.engine.kernels.cpu import linear_ir, token_ir
from kvhouse.engine.kernels.cpu.intrinsics import Intrinsic, emitted
from kvhouse.engine.kernels.cpu.vectors_ir import BYTES, I64


@intrinsic(prefer_literal=True)
def dot(
    context: Any,
    kind: Any,
    tokens: Any,
    asked: Any,
    rows: Any,
    row_bytes: Any,
    last: Any,
    x: Any,
    x_bytes: Any,
    last_token: Any,
    size: Any,
    out: Any,
    ahead: Any,
) -> Intrinsic:
    """See ``linear_ir.dot_function``."""
    constants = kind.literal_value, tokens.literal_value, asked.literal_value

    def emit(b: ir.IRBuilder, *values: ir.Value) -> None:
        b.call(linear_ir.dot_function(b.module, *constants), values)

    return emitted(types.void, "pnnpnnnpp", emit, kind, tokens, asked)


@intrinsic(prefer_literal=True)
def wide(
    context: Any,
    kind: Any,
    tokens: Any,
    asked: Any,
    panel: Any,
    x: Any,
    x_bytes: Any,
    last_token: Any,
    size: Any,
    out: Any,
    ahead: Any,
) -> Intrinsic:
    """See ``linear_ir.wide_function``."""
    constants = kind.literal_value, tokens.literal_value, asked.literal_value

    def emit(b: ir.IRBuilder, *values: ir.Value) -> None:
        b.call(linear_ir.wide_function(b.module, *constants), values)

    return emitted(types.void, "ppnnnpp", emit, kind, tokens, asked)


@intrinsic
def turn(context: Any, rows: Any, row_bytes: Any, last: Any, size: Any, out: Any) -> Intrinsic:
    """See ``linear_ir.turn_function``."""

    def emit(b: ir.IRBuilder, *values: ir.Value) -> None:
        b.call(linear_ir.turn_function(b.module), values)

    return emitted(types.void, "pnnnp", emit)


@intrinsic(prefer_literal=True)
def add_row(context: Any, fmt: Any, source: Any, row: Any, count: Any) -> Intrinsic:
    """See ``token_ir.add_row``."""
    number = fmt.literal_value
    return emitted(types.void, "ppn", lambda b, *values: token_ir.add_row(b, number, *values), fmt)


@intrinsic(prefer_literal=True)
def put_row(context: Any, fmt: Any, row: Any, target: Any, count: Any) -> Intrinsic:
    """See ``token_ir.put_row``."""
    number = fmt.literal_value
    return emitted(types.void, "ppn", lambda b, *values: token_ir.put_row(b, number, *values), fmt)


@intrinsic
def multiply_row(context: Any, row: Any, other: Any, count: Any) -> Intrinsic:
    """See ``token_ir.multiply_row``."""
    return emitted(types.void, "ppn", token_ir.multiply_row)


@intrinsic
def shift_row(context: Any, row: Any, count: Any, offset: Any) -> Intrinsic:
    """See ``token_ir.shift_row``."""
    return emitted(types.void, "pnf", token_ir.shift_row)


@intrinsic
def row_sum(context: Any, row: Any, count: Any) -> Intrinsic:
    """See ``token_ir.row_sum``."""
    return emitted(types.float32, "pn", token_ir.row_sum)


@intrinsic
def square_sum(context: Any, row: Any, count: Any) -> Intrinsic:
    """See ``token_ir.square_sum``."""
    return emitted(types.float32, "pn", token_ir.square_sum)


@intrinsic(prefer_literal=True)
def activate_row(context: Any, activation: Any, row: Any, count: Any) -> Intrinsic:
    """See ``token_ir.activate_row``."""
    number = activation.literal_value
    return emitted(
        types.void, "pn", lambda b, *values: token_ir.activate_row(b, number, *values), activation
    )


@intrinsic(prefer_literal=True)
def rotate_pairs(
    context: Any, fmt: Any, row: Any, cosines: Any, sines: Any, half: Any, half_bytes: Any
) -> Intrinsic:
    """See ``token_ir.rotate_pairs``."""
    number = fmt.literal_value
    return emitted(
        types.void, "pppnn", lambda b, *values: token_ir.rotate_pairs(b, number, *values), fmt
    )


@intrinsic
def atomic_at(context: Any, address: Any) -> Intrinsic:
    """The int64 at an address, as other threads have left it by now."""

    def emit(b: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
        typed = b.bitcast(pointer, ir.PointerType(I64))
        return b.load_atomic(typed, "seq_cst", 8, typ=I64)

    return emitted(types.int64, "p", emit)


@intrinsic
def call_with(context: Any, function: Any, data: Any) -> Intrinsic:
    """Call the function at an address with a pointer."""

    def emit(b: ir.IRBuilder, function: ir.Value, data: ir.Value) -> None:
        signature = ir.FunctionType(ir.VoidType(), [BYTES])
        b.call(b.bitcast(function, ir.PointerType(signature)), [data])

    return emitted(types.void, "pp", emit)


@intrinsic
def relax(context: Any) -> Intrinsic:
    """Let the core rest for a moment while it waits for another."""
    machine = platform.machine().lower()
    pause = "llvm.x86.sse2.pause" if machine in ("x86_64", "amd64") else ""
    return emitted(types.void, "", lambda b: _call_plain(b, pause, ir.VoidType()))


@intrinsic
def give_way(context: Any) -> Intrinsic:
    """Let another thread have the core, where the system has a call for it."""
    name = "sched_yield" if os.name == "posix" else ""
    return emitted(types.void, "", lambda b: _call_plain(b, name, ir.IntType(32)))


def _call_plain(b: ir.IRBuilder, name: str, result: ir.Type) -> None:
    """Call a function without arguments, unless its name is empty."""
    if name:
        b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(result, []), name), [])
