"""Vector code that attention in pairs of bfloat16 is made of, for Numba: see ``intrinsics``."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvhouse.engine.kernels.cpu import pairs_ir
from kvhouse.engine.kernels.cpu.intrinsics import Intrinsic, emitted


@intrinsic(prefer_literal=True)
def turn_keys(
    context: Any,
    fmt: Any,
    k: Any,
    k_stride: Any,
    size: Any,
    scales: Any,
    factor: Any,
    out: Any,
    factors: Any,
) -> Intrinsic:
    """See ``pairs_ir.turn_keys_function``."""

    def emit(b: ir.IRBuilder, *values: ir.Value) -> None:
        b.call(pairs_ir.turn_keys_function(b.module, fmt.literal_value), values)

    return emitted(types.void, "pnnpfpp", emit, fmt)


@intrinsic(prefer_literal=True)
def turn_values(
    context: Any,
    fmt: Any,
    v: Any,
    other: Any,
    size: Any,
    scale: Any,
    other_scale: Any,
    scale_stride: Any,
    out: Any,
    panel_bytes: Any,
) -> Intrinsic:
    """See ``pairs_ir.turn_values_function``."""

    def emit(b: ir.IRBuilder, *values: ir.Value) -> None:
        b.call(pairs_ir.turn_values_function(b.module, fmt.literal_value), values)

    return emitted(types.void, "ppnppnpn", emit, fmt)


@intrinsic(prefer_literal=True)
def pair_product(
    context: Any,
    kind: Any,
    added: Any,
    panel: Any,
    x: Any,
    x_bytes: Any,
    last: Any,
    size: Any,
    factors: Any,
    out: Any,
    out_bytes: Any,
) -> Intrinsic:
    """See ``pairs_ir.product_function``."""

    def emit(b: ir.IRBuilder, *values: ir.Value) -> None:
        function = pairs_ir.product_function(
            b.module, kind.literal_value, pairs_ir.PRODUCT_ROWS, added=bool(added.literal_value)
        )
        b.call(function, values)

    return emitted(types.void, "ppnnnppn", emit, kind, added)
