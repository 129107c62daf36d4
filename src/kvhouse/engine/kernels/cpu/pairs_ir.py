"""LLVM IR of attention's two products in pairs of bfloat16, for many rows of queries.

What is multiplied are words of 32 bits, two bfloat16 side by side, by ``linear_ir.PAIRS`` or
``linear_ir.SPLIT_PAIRS``. Keys and values are first turned into *panels*: a panel has 32
columns, keys or elements of values, and of each column one word every ``PANEL_WORD`` bytes. A word
is two elements of a key that follow each other, or the same element of two tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.core import cgutils

from kvhouse.engine.kernels.cpu.linear_ir import (
    BLOCK,
    PANEL_WORD,
    add_four_words,
    begin,
    rows_up_to,
    steps,
)
from kvhouse.engine.kernels.cpu.products_ir import GROUP, GROUP_BYTES
from kvhouse.engine.kernels.cpu.vectors_ir import (
    BF16,
    BYTES,
    F32,
    FP16,
    I16,
    I32,
    I64,
    INT4,
    ITEM_BYTES,
    LINE,
    at,
    load,
    narrow,
    same,
    splat,
    store,
    vector,
    widen,
    widen_pairs,
    widen_scales,
)

#: Rows that are multiplied at once: with a panel's two registers for each, all sums stay in them.
PRODUCT_ROWS = 8

#: Columns of a panel.
PANEL = 2 * BLOCK

_FLOATS = vector(F32, BLOCK)
_WORDS = vector(I32, BLOCK)


def turn_keys_function(module: ir.Module, fmt: int) -> ir.Function:
    """``void(k, k_stride, size, scales, factor, out, factors)``: 16 keys as a half of a panel.

    ``k`` has an element of each key every ``k_stride`` bytes, and ``size`` of them, an even
    number; of int4 two. ``scales`` has the scale of each key, where the format has scales; of int4
    one for each group, twice ``k_stride`` bytes apart. Codes of fp8 and int8 are exact in bfloat16,
    so their scales are left for the scores: ``factors`` is what those of each key have to be
    multiplied by, ``factor`` included.
    """
    kinds = [BYTES, I64, I64, BYTES, F32, BYTES, BYTES]
    function, b = begin(module, f"kvhouse_turn_keys_{fmt}", kinds)
    keys, stride, size, scales, factor, out, factors = function.args
    each = splat(b, factor, BLOCK)
    if fmt == INT4:
        _turn_key_groups(b, keys, stride, size, scales, out)
    else:
        if fmt > FP16:
            each = b.fmul(each, widen_scales(b, fmt, scales, BLOCK))
        with steps(b, size, 2) as element:
            pair = [_narrowed(b, fmt, place, None) for place in _two(b, keys, stride, element)]
            _put_words(b, pair, out, element)
    store(b, each, factors, 4)
    b.ret_void()
    return function


def _turn_key_groups(
    b: ir.IRBuilder,
    keys: ir.Value,
    stride: ir.Value,
    size: ir.Value,
    scales: ir.Value,
    out: ir.Value,
) -> None:
    """The same of int4: a byte has one element of a group's first half and one of its second."""
    with steps(b, size, GROUP) as first:
        number = b.udiv(first, ir.Constant(I64, GROUP))
        row = at(b, scales, b.mul(number, b.mul(stride, ir.Constant(I64, 2))))
        scale = widen_scales(b, INT4, row, BLOCK)
        start = at(b, keys, b.mul(b.mul(number, ir.Constant(I64, GROUP_BYTES)), stride))
        with steps(b, ir.Constant(I64, GROUP_BYTES), 2) as byte:
            both = [widen_pairs(b, place, BLOCK) for place in _two(b, start, stride, byte)]
            for half, values in enumerate(zip(*both, strict=True)):
                element = b.add(first, b.add(byte, ir.Constant(I64, half * GROUP_BYTES)))
                pair = [narrow(b, BF16, b.fmul(value, scale)) for value in values]
                _put_words(b, pair, out, element)


def turn_values_function(module: ir.Module, fmt: int) -> ir.Function:
    """``void(v, other, size, scale, other_scale, scale_stride, out, panel_bytes)``.

    Two tokens' values; ``size``, a multiple of 32, are the elements of each, and of every panel
    they fill one word of each column. ``scale`` and ``other_scale`` point to the tokens' scales,
    where the format has any; of int4 those of further groups are ``scale_stride`` bytes apart.
    """
    kinds = [BYTES, BYTES, I64, BYTES, BYTES, I64, BYTES, I64]
    function, b = begin(module, f"kvhouse_turn_values_{fmt}", kinds)
    values, other, size, scale, other_scale, scale_stride, out, panel_bytes = function.args
    with steps(b, size, PANEL) as element:
        number = b.udiv(element, ir.Constant(I64, PANEL))
        scales: list[ir.Value | None] = [None, None]
        if fmt > FP16:
            offset = b.mul(number, scale_stride) if fmt == INT4 else ir.Constant(I64, 0)
            scales = [_one_scale(b, fmt, at(b, place, offset)) for place in (scale, other_scale)]
        both = [
            _panel_row(b, fmt, place, element, factor)
            for place, factor in zip((values, other), scales, strict=True)
        ]
        target = at(b, out, b.mul(number, panel_bytes))
        for half, pair in enumerate(zip(*both, strict=True)):
            store(b, _words(b, pair), at(b, target, ir.Constant(I64, half * LINE)), LINE)
    b.ret_void()
    return function


def product_function(module: ir.Module, kind: int, rows: int, *, added: bool) -> ir.Function:
    """``void(panel, x, x_bytes, last, bytes, factors, out, out_bytes)``.

    The products of a panel with rows of pairs, ``bytes`` of each, a multiple of 16; rows after
    ``last`` are taken for it. ``out`` is float32 ``[rows, 32]``, to which the products are added,
    or which they become, times each column's factor.
    """
    kinds = [BYTES, BYTES, I64, I64, I64, BYTES, BYTES, I64]
    function, b = begin(module, f"kvhouse_pairs_{kind}_{rows}_{int(added)}", kinds)
    panel, x, x_bytes, last, size, factors, out, out_bytes = function.args
    inputs = rows_up_to(b, x, x_bytes, last, rows)
    targets = [
        at(b, row, ir.Constant(I64, half * LINE))
        for row in rows_up_to(b, out, out_bytes, last, rows)
        for half in range(2)
    ]
    sums = [cgutils.alloca_once(b, _FLOATS) for _ in targets]
    for variable, target in zip(sums, targets, strict=True):
        b.store(load(b, target, _FLOATS, 4) if added else same(F32, 0.0, BLOCK), variable)
    with steps(b, size, 16) as offset:
        add_four_words(b, kind, panel, inputs, offset, sums)
    each = []
    if not added:
        each = [load(b, at(b, factors, ir.Constant(I64, n * LINE)), _FLOATS, 4) for n in range(2)]
    for number, (variable, target) in enumerate(zip(sums, targets, strict=True)):
        total = b.load(variable, typ=_FLOATS)
        store(b, b.fmul(total, each[number % 2]) if each else total, target, 4)
    b.ret_void()
    return function


def _two(b: ir.IRBuilder, base: ir.Value, stride: ir.Value, first: ir.Value) -> list[ir.Value]:
    """Pointers to an element and the one after it."""
    return [at(b, base, b.mul(b.add(first, ir.Constant(I64, n)), stride)) for n in range(2)]


def _one_scale(b: ir.IRBuilder, fmt: int, place: ir.Value) -> ir.Value:
    """A token's scale in every lane."""
    one = widen_scales(b, fmt, place, 1)
    return splat(b, b.extract_element(one, ir.Constant(I32, 0)), BLOCK)


def _panel_row(
    b: ir.IRBuilder, fmt: int, values: ir.Value, element: ir.Value, scale: ir.Value | None
) -> list[ir.Value]:
    """A token's 32 elements from ``element`` on, times their scale, as bfloat16 of 16 lanes."""
    if fmt == INT4:
        place = at(b, values, b.udiv(element, ir.Constant(I64, 2)))
        return [narrow(b, BF16, b.fmul(v, scale)) for v in widen_pairs(b, place, BLOCK)]
    first = at(b, values, b.mul(element, ir.Constant(I64, ITEM_BYTES[fmt])))
    halves = [at(b, first, ir.Constant(I64, n * BLOCK * ITEM_BYTES[fmt])) for n in range(2)]
    return [_narrowed(b, fmt, half, scale) for half in halves]


def _narrowed(b: ir.IRBuilder, fmt: int, place: ir.Value, scale: ir.Value | None) -> ir.Value:
    """16 elements of a format, times their scales, as bfloat16."""
    if fmt == BF16:
        return load(b, place, vector(I16, BLOCK), 2)
    value = widen(b, fmt, place, BLOCK)
    return narrow(b, BF16, value if scale is None else b.fmul(value, scale))


def _put_words(b: ir.IRBuilder, pair: Sequence[ir.Value], out: ir.Value, element: ir.Value) -> None:
    """Words of an element and the next one, where a half of a panel has them."""
    place = at(b, out, b.mul(element, ir.Constant(I64, PANEL_WORD // 2)))
    store(b, _words(b, pair), place, LINE)


def _words(b: ir.IRBuilder, pair: Sequence[ir.Value]) -> ir.Value:
    """Two vectors' lanes side by side."""
    order = [lane + other for lane in range(BLOCK) for other in (0, BLOCK)]
    mixed = b.shuffle_vector(*pair, ir.Constant(vector(I32, 2 * BLOCK), order))
    return b.bitcast(mixed, _WORDS)
