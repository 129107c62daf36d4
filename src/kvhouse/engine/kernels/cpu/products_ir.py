"""LLVM IR of the two products of attention, for a few rows of queries and a few tokens.

A *row* is one query head of one token. ``score`` multiplies rows with keys that lie across tokens
(``kvhouse.engine.vectors.cut``), so that each lane adds up another token's score and none are
added across lanes; ``weigh`` adds up values, so that each lane is another element of the output.
A key or value is widened once for all rows of a call, which stay in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.core import cgutils

from kvhouse.engine.kernels.cpu.vectors_ir import (
    BYTES,
    F32,
    FP16,
    I32,
    I64,
    INT4,
    ITEM_BYTES,
    ask,
    at,
    load,
    multiply_add,
    same,
    splat,
    store,
    vector,
    widen,
    widen_pairs,
    widen_scales,
)

#: Elements of a group of int4, and bytes that it takes.
GROUP, GROUP_BYTES = 32, 16

_SUMS = 8


def score_function(module: ir.Module, fmt: int, lanes: int, rows: int) -> ir.Function:
    """``void(q, q_stride, k, k_stride, size, scales, out, out_stride, ahead)``.

    The scores of ``lanes`` tokens. ``q`` is float32 ``[rows, size]``, ``out`` float32
    ``[rows, lanes]``; ``k`` has ``size`` elements (of int4 half of it) of each token,
    ``k_stride`` bytes after another; ``scales`` are as far apart in elements. Strides are in
    bytes. As much as is read from ``k`` is asked for from ``ahead`` on, a little at a time, since
    what waits for memory holds up what does not.
    """
    kinds = [BYTES, I64, BYTES, I64, I64, BYTES, BYTES, I64, BYTES]
    name = f"kvhouse_score_{fmt}_{lanes}_{rows}"
    function, b = _begin(module, name, kinds)
    q, q_stride, k, k_stride, size, scales, out, out_stride, ahead = function.args
    queries = _each(b, q, q_stride, rows)
    if fmt == INT4:
        totals = _score_groups(b, queries, (k, k_stride, scales, ahead), size, lanes)
    else:
        totals = _score_elements(b, fmt, queries, (k, k_stride, ahead), size, lanes)
        if fmt > FP16:
            scale = widen_scales(b, fmt, scales, lanes)
            totals = [b.fmul(total, scale) for total in totals]
    for total, pointer in zip(totals, _each(b, out, out_stride, rows), strict=True):
        store(b, total, pointer, 4)
    b.ret_void()
    return function


def weigh_function(module: ir.Module, fmt: int, lanes: int, width: int, rows: int) -> ir.Function:
    """``void(p, p_stride, v, v_stride, size, scales, scale_stride, out, out_stride, ...)``.

    The last are ``first``, ``end`` and ``ahead``. Adds to ``out``, float32 ``[rows, size]``, the
    values of tokens ``first`` to ``end`` of ``lanes``, weighted by ``p``, float32
    ``[rows, lanes]``. ``v`` has each token's elements ``v_stride`` bytes after another's. Strides
    are in bytes, and ``size`` is a multiple of ``width``. As much as is read from ``v`` is asked
    for from ``ahead`` on.
    """
    kinds = [BYTES, I64, BYTES, I64, I64, BYTES, I64, BYTES, I64, I64, I64, BYTES]
    name = f"kvhouse_weigh_{fmt}_{lanes}_{width}_{rows}"
    function, b = _begin(module, name, kinds)
    p, p_stride, v, v_stride, size, scales, scale_stride = function.args[:7]
    out, out_stride, first, end, ahead = function.args[7:]
    chunk_bytes = GROUP_BYTES if fmt == INT4 else width * ITEM_BYTES[fmt]
    weights = _each(b, p, p_stride, rows)
    sums = _each(b, out, out_stride, rows)
    scaled = []
    if fmt > FP16:
        scaled = [cgutils.alloca_once(b, vector(F32, lanes)) for _ in range(rows)]
        if fmt != INT4:
            _scale_weights(b, fmt, weights, scales, scaled)
    with cgutils.for_range_slice(
        b, ir.Constant(I64, 0), size, ir.Constant(I64, width), intp=I64
    ) as (element, _):
        if fmt == INT4:
            group = b.udiv(element, ir.Constant(I64, GROUP))
            offset = b.mul(group, scale_stride)
            _scale_weights(b, fmt, weights, at(b, scales, offset), scaled)
            start = b.mul(group, ir.Constant(I64, GROUP_BYTES))
        else:
            start = b.mul(element, ir.Constant(I64, ITEM_BYTES[fmt]))
        ask(b, at(b, ahead, b.mul(start, ir.Constant(I64, lanes))), chunk_bytes * lanes)
        used = [b.bitcast(s, BYTES) for s in scaled] or weights
        mine = [at(b, s, b.mul(element, ir.Constant(I64, 4))) for s in sums]
        _weigh_chunk(b, fmt, used, (at(b, v, start), v_stride), mine, width, (first, end))
    b.ret_void()
    return function


def _begin(
    module: ir.Module, name: str, kinds: Sequence[ir.Type]
) -> tuple[ir.Function, ir.IRBuilder]:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
    function.linkage = "internal"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _each(b: ir.IRBuilder, base: ir.Value, stride: ir.Value, rows: int) -> list[ir.Value]:
    """Pointers to the rows of a matrix."""
    return [at(b, base, b.mul(stride, ir.Constant(I64, row))) for row in range(rows)]


def _zeros(b: ir.IRBuilder, count: int, lanes: int) -> list[ir.Value]:
    """Variables for sums."""
    sums = [cgutils.alloca_once(b, vector(F32, lanes)) for _ in range(count)]
    for variable in sums:
        b.store(same(F32, 0.0, lanes), variable)
    return sums


def _add_product(b: ir.IRBuilder, factor: ir.Value, lanes: ir.Value, variable: ir.Value) -> None:
    """Add a scalar in memory times a vector to a sum."""
    one = splat(b, load(b, factor, F32, 4), lanes.type.count)
    total = b.load(variable, typ=lanes.type)
    b.store(multiply_add(b, one, lanes, total), variable)


def _score_elements(
    b: ir.IRBuilder,
    fmt: int,
    queries: Sequence[ir.Value],
    keys: tuple[ir.Value, ir.Value, ir.Value],
    size: ir.Value,
    lanes: int,
) -> list[ir.Value]:
    """Several sums for each row, since one addition must wait for the one before it."""
    rows = len(queries)
    apart = next(n for n in (8, 4, 2, 1) if n * rows <= 2 * _SUMS and (n <= 2 or n * rows <= 12))
    sums = _zeros(b, apart * rows, lanes)
    step = ir.Constant(I64, apart)
    with cgutils.for_range_slice(b, ir.Constant(I64, 0), size, step, intp=I64) as (first, _):
        ask(b, at(b, keys[2], b.mul(first, keys[1])), apart * lanes * ITEM_BYTES[fmt])
        for turn in range(apart):
            element = b.add(first, ir.Constant(I64, turn))
            key = widen(b, fmt, at(b, keys[0], b.mul(element, keys[1])), lanes)
            offset = b.mul(element, ir.Constant(I64, 4))
            for row, query in enumerate(queries):
                _add_product(b, at(b, query, offset), key, sums[turn * rows + row])
    return [_total(b, sums[row::rows], lanes) for row in range(rows)]


def _total(b: ir.IRBuilder, sums: Sequence[ir.Value], lanes: int) -> ir.Value:
    values = [b.load(variable, typ=vector(F32, lanes)) for variable in sums]
    while len(values) > 1:
        half = len(values) // 2
        values = [b.fadd(x, y) for x, y in zip(values[:half], values[half:], strict=True)]
    return values[0]


def _score_groups(
    b: ir.IRBuilder,
    queries: Sequence[ir.Value],
    keys: tuple[ir.Value, ir.Value, ir.Value, ir.Value],
    size: ir.Value,
    lanes: int,
) -> list[ir.Value]:
    """The same of int4: a sum for each row and group, and its scale times that to the total."""
    rows = len(queries)
    k, k_stride, scales, ahead = keys
    totals = _zeros(b, rows, lanes)
    sums = [cgutils.alloca_once(b, vector(F32, lanes)) for _ in range(2 * rows)]
    step = ir.Constant(I64, GROUP)
    with cgutils.for_range_slice(b, ir.Constant(I64, 0), size, step, intp=I64) as (first, _):
        for variable in sums:
            b.store(same(F32, 0.0, lanes), variable)
        start = b.udiv(first, ir.Constant(I64, 2))
        ask(b, at(b, ahead, b.mul(start, k_stride)), GROUP_BYTES * lanes)
        with cgutils.for_range(b, ir.Constant(I64, GROUP_BYTES), intp=I64) as loop:
            place = b.mul(b.add(start, loop.index), k_stride)
            element = b.add(first, loop.index)
            for half, key in enumerate(widen_pairs(b, at(b, k, place), lanes)):
                mine = b.add(element, ir.Constant(I64, half * GROUP_BYTES))
                offset = b.mul(mine, ir.Constant(I64, 4))
                for row, query in enumerate(queries):
                    _add_product(b, at(b, query, offset), key, sums[half * rows + row])
        group = b.udiv(first, ir.Constant(I64, GROUP))
        # A scale takes two bytes where a key's byte takes one.
        place = b.mul(group, b.mul(k_stride, ir.Constant(I64, 2)))
        scale = widen_scales(b, INT4, at(b, scales, place), lanes)
        for row, total in enumerate(totals):
            part = _total(b, sums[row::rows], lanes)
            value = b.load(total, typ=vector(F32, lanes))
            b.store(multiply_add(b, part, scale, value), total)
    return [b.load(total, typ=vector(F32, lanes)) for total in totals]


def _scale_weights(
    b: ir.IRBuilder,
    fmt: int,
    weights: Sequence[ir.Value],
    scales: ir.Value,
    scaled: Sequence[ir.Value],
) -> None:
    """Multiply each token's weight by its scale, so that values need not be."""
    lanes = scaled[0].type.pointee.count
    scale = widen_scales(b, fmt, scales, lanes)
    for weight, variable in zip(weights, scaled, strict=True):
        b.store(b.fmul(load(b, weight, vector(F32, lanes), 4), scale), variable)


def _weigh_chunk(
    b: ir.IRBuilder,
    fmt: int,
    weights: Sequence[ir.Value],
    values: tuple[ir.Value, ir.Value],
    sums: Sequence[ir.Value],
    width: int,
    span: tuple[ir.Value, ir.Value],
) -> None:
    """``width`` elements of the output, of every row."""
    variables = [cgutils.alloca_once(b, vector(F32, width)) for _ in sums]
    for pointer, variable in zip(sums, variables, strict=True):
        b.store(load(b, pointer, vector(F32, width), 4), variable)
    one = ir.Constant(I64, 1)
    with cgutils.for_range_slice(b, span[0], span[1], one, intp=I64) as (token, _):
        place = at(b, values[0], b.mul(token, values[1]))
        if fmt == INT4:
            low, high = widen_pairs(b, place, width // 2)
            order = ir.Constant(vector(I32, width), list(range(width)))
            value = b.shuffle_vector(low, high, order)
        else:
            value = widen(b, fmt, place, width)
        offset = b.mul(token, ir.Constant(I64, 4))
        for weight, variable in zip(weights, variables, strict=True):
            _add_product(b, at(b, weight, offset), value, variable)
    for pointer, variable in zip(sums, variables, strict=True):
        store(b, b.load(variable, typ=vector(F32, width)), pointer, 4)


def widen_across(
    b: ir.IRBuilder,
    fmt: int,
    lanes: int,
    v: ir.Value,
    v_stride: ir.Value,
    size: ir.Value,
    scales: ir.Value,
    scale_stride: ir.Value,
    out: ir.Value,
) -> None:
    """Turn vectors that lie token by token into float32 ``[size, lanes]``, scales applied."""
    width = GROUP if fmt == INT4 else 16
    step = ir.Constant(I64, width)
    with cgutils.for_range_slice(b, ir.Constant(I64, 0), size, step, intp=I64) as (first, _):
        group = b.udiv(first, step) if fmt == INT4 else ir.Constant(I64, 0)
        item = (
            (ir.Constant(I64, GROUP_BYTES), group)
            if fmt == INT4
            else (ir.Constant(I64, ITEM_BYTES[fmt]), first)
        )
        start, scale = at(b, v, b.mul(*item)), at(b, scales, b.mul(group, scale_stride))
        halves: list[list[ir.Value]] = [[] for _ in range(width // 16)]
        for token in range(lanes):
            place = at(b, start, b.mul(v_stride, ir.Constant(I64, token)))
            parts = widen_pairs(b, place, 16) if fmt == INT4 else [widen(b, fmt, place, 16)]
            if fmt > FP16:
                one = widen_scales(b, fmt, at(b, scale, ir.Constant(I64, 2 * token)), 1)
                wide = splat(b, b.extract_element(one, ir.Constant(I32, 0)), 16)
                parts = [b.fmul(part, wide) for part in parts]
            for half, part in zip(halves, parts, strict=True):
                half.append(part)
        for number, half in enumerate(halves):
            target = at(
                b,
                out,
                b.mul(b.add(first, ir.Constant(I64, 16 * number)), ir.Constant(I64, 4 * lanes)),
            )
            for element, column in enumerate(_turn(b, half)):
                store(b, column, at(b, target, ir.Constant(I64, 4 * lanes * element)), 4)


def _turn(b: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """The 16 columns of at most 16 rows of 16 lanes, by exchanging ever smaller squares."""
    nothing = ir.Constant(rows[0].type, ir.Undefined)
    lanes = range(16)
    turned = [*rows, *[nothing] * (16 - len(rows))]
    for step in (8, 4, 2, 1):
        upper = [lane if not lane & step else 16 + lane - step for lane in lanes]
        lower = [lane + step if not lane & step else 16 + lane for lane in lanes]
        for row in lanes:
            if not row & step:
                pair = turned[row], turned[row + step]
                turned[row] = b.shuffle_vector(*pair, ir.Constant(vector(I32, 16), upper))
                turned[row + step] = b.shuffle_vector(*pair, ir.Constant(vector(I32, 16), lower))
    if len(rows) == 16:
        return turned
    kept = ir.Constant(vector(I32, len(rows)), list(range(len(rows))))
    return [b.shuffle_vector(column, nothing, kept) for column in turned]
