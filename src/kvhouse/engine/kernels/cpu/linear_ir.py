"""LLVM IR of matrix products ``x @ weights.T`` with weights that lie row by row.

What is multiplied are *words* of 32 bits: one float32, or two bfloat16 side by side, whose products
are added at once. A *block* is 16 rows of weights.

``dot_function`` serves few tokens: each sum has lanes of its own along the row, which are added up
at the end; weights are read as they lie, once. ``wide_function`` serves many: weights are
turned first (``turn_function``), so that each lane is another row and nothing has to be added
across lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir
from numba.core import cgutils

from kvhouse.engine.kernels.cpu.vectors_ir import (
    BYTES,
    F32,
    I32,
    I64,
    LINE,
    ask,
    at,
    load,
    multiply_add,
    same,
    splat,
    store,
    vector,
)

#: How words are multiplied: as float32; as bfloat16 by two float32 products; as bfloat16 by the
#: machine's own instruction (AVX512_BF16), which takes subnormal numbers for 0.
FLOATS, SPLIT_PAIRS, PAIRS = range(3)

#: Rows of a block, words that are multiplied at once.
BLOCK = 16

#: Rows that ``dot_function`` multiplies at once.
DOT_ROWS = 4

#: Bytes of one word of the two blocks of a panel, side by side.
PANEL_WORD = 2 * 4 * BLOCK

_WORDS = vector(I32, BLOCK)
_FLOATS = vector(F32, BLOCK)


def dot_function(module: ir.Module, kind: int, tokens: int, asked: int) -> ir.Function:
    """``void(rows, row_bytes, last, x, x_bytes, last_token, bytes, out, ahead)``.

    The products of four rows with at most four tokens: more rows at once would be more streams
    than the processor fetches ahead of. Rows after ``last`` and tokens after ``last_token`` are
    taken for the last ones. ``bytes``, a multiple of 64, are as many as a row has; ``out`` is
    float32 ``[tokens, 4]`` of a panel's sums. As much as ``asked`` rows have is asked for from
    ``ahead`` on.
    """
    kinds = [BYTES, I64, I64, BYTES, I64, I64, I64, BYTES, BYTES]
    function, b = begin(module, f"kvhouse_dot_{kind}_{tokens}_{asked}", kinds)
    weights, row_bytes, last, x, x_bytes, last_token, size, out, ahead = function.args
    rows = rows_up_to(b, weights, row_bytes, last, DOT_ROWS)
    inputs = rows_up_to(b, x, x_bytes, last_token, tokens)
    sums = _zeros(b, DOT_ROWS * tokens)
    with steps(b, size, LINE) as offset:
        ask(b, at(b, ahead, b.mul(offset, ir.Constant(I64, asked))), asked * LINE)
        taken = [load(b, at(b, pointer, offset), _WORDS, 2) for pointer in inputs]
        for row, pointer in enumerate(rows):
            words = load(b, at(b, pointer, offset), _WORDS, 2)
            for token, other in enumerate(taken):
                add_product(b, kind, words, other, sums[token * DOT_ROWS + row])
    # Fewer than 16 are taken several times, which costs nothing.
    values = [b.load(variable, typ=_FLOATS) for variable in sums] * (4 // tokens)
    total = _sum_each(b, values)
    for token in range(tokens):
        part = _lanes(b, total, total, range(DOT_ROWS * token, DOT_ROWS * (token + 1)))
        store(b, part, at(b, out, ir.Constant(I64, PANEL_WORD * token)), 4)
    b.ret_void()
    return function


def wide_function(module: ir.Module, kind: int, tokens: int, asked: int) -> ir.Function:
    """``void(panel, x, x_bytes, last_token, bytes, out, ahead)``.

    The products of the 32 rows of a panel, turned, with ``tokens`` tokens; those after
    ``last_token`` are taken for it. ``bytes``, a multiple of 64, are as many as a row
    has; ``out`` is float32 ``[tokens, 32]``. As much as ``4 * asked`` rows have is asked for from
    ``ahead`` on.
    """
    kinds = [BYTES, BYTES, I64, I64, I64, BYTES, BYTES]
    function, b = begin(module, f"kvhouse_wide_{kind}_{tokens}_{asked}", kinds)
    panel, x, x_bytes, last_token, size, out, ahead = function.args
    inputs = rows_up_to(b, x, x_bytes, last_token, tokens)
    sums = _zeros(b, 2 * tokens)
    with steps(b, size, 16) as offset:
        ask(b, at(b, ahead, b.mul(offset, ir.Constant(I64, 4 * asked))), asked * LINE)
        add_four_words(b, kind, panel, inputs, offset, sums)
    for number, variable in enumerate(sums):
        store(b, b.load(variable, typ=_FLOATS), at(b, out, ir.Constant(I64, number * LINE)), 4)
    b.ret_void()
    return function


def turn_function(module: ir.Module) -> ir.Function:
    """``void(rows, row_bytes, last, bytes, out)``: a block of weights, word by word.

    Rows after ``last`` are taken for it. ``out`` has 16 words, one of each row, every
    ``PANEL_WORD`` bytes.
    """
    function, b = begin(module, "kvhouse_turn", [BYTES, I64, I64, I64, BYTES])
    weights, row_bytes, last, size, out = function.args
    rows = rows_up_to(b, weights, row_bytes, last, BLOCK)
    with steps(b, size, LINE) as offset:
        taken = [load(b, at(b, pointer, offset), _WORDS, 2) for pointer in rows]
        target = at(b, out, b.mul(offset, ir.Constant(I64, PANEL_WORD // 4)))
        for word, lanes in enumerate(_turned(b, taken)):
            store(b, lanes, at(b, target, ir.Constant(I64, word * PANEL_WORD)), LINE)
    b.ret_void()
    return function


def begin(
    module: ir.Module, name: str, kinds: Sequence[ir.Type]
) -> tuple[ir.Function, ir.IRBuilder]:
    """A function of this name that gives nothing back, to be filled."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


@contextmanager
def steps(b: ir.IRBuilder, size: ir.Value, step: int) -> Iterator[ir.Value]:
    """Each multiple of ``step`` below ``size``."""
    zero, stride = ir.Constant(I64, 0), ir.Constant(I64, step)
    with cgutils.for_range_slice(b, zero, size, stride, intp=I64) as (index, _):
        yield index


def rows_up_to(
    b: ir.IRBuilder, base: ir.Value, stride: ir.Value, last: ir.Value, count: int
) -> list[ir.Value]:
    """Pointers to the rows of a matrix; to its last one for those that it has not."""
    found = []
    for number in range(count):
        index = ir.Constant(I64, number)
        index = b.select(b.icmp_signed("<", index, last), index, last)
        found.append(at(b, base, b.mul(stride, index)))
    return found


def _zeros(b: ir.IRBuilder, count: int) -> list[ir.Value]:
    sums = [cgutils.alloca_once(b, _FLOATS) for _ in range(count)]
    for variable in sums:
        b.store(same(F32, 0.0, BLOCK), variable)
    return sums


def add_four_words(
    b: ir.IRBuilder,
    kind: int,
    panel: ir.Value,
    inputs: Sequence[ir.Value],
    offset: ir.Value,
    sums: Sequence[ir.Value],
) -> None:
    """Add the products of a panel's next four words, 16 bytes of each row, with rows of inputs.

    Args:
        b: Where code is put.
        kind: How words are multiplied.
        panel: The panel.
        inputs: The rows.
        offset: Bytes of a row before these words.
        sums: Two for each of the inputs, one for each half of the panel.
    """
    for word in range(4):
        place = b.add(offset, ir.Constant(I64, 4 * word))
        start = at(b, panel, b.mul(place, ir.Constant(I64, PANEL_WORD // 4)))
        halves = [
            load(b, at(b, start, ir.Constant(I64, half * LINE)), _WORDS, LINE) for half in range(2)
        ]
        for row, pointer in enumerate(inputs):
            one = splat(b, load(b, at(b, pointer, place), I32, 2), BLOCK)
            for half, columns in enumerate(halves):
                add_product(b, kind, columns, one, sums[2 * row + half])


def add_product(b: ir.IRBuilder, kind: int, x: ir.Value, y: ir.Value, variable: ir.Value) -> None:
    """Add 16 words times 16 others to a sum."""
    total = b.load(variable, typ=_FLOATS)
    if kind == PAIRS:
        signature = ir.FunctionType(_FLOATS, [_FLOATS, _WORDS, _WORDS])
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        product = cgutils.get_or_insert_function(b.module, signature, name)
        total = b.call(product, [total, x, y])
    elif kind == FLOATS:
        total = multiply_add(b, b.bitcast(x, _FLOATS), b.bitcast(y, _FLOATS), total)
    else:
        for part in (_first, _second):
            total = multiply_add(b, part(b, x), part(b, y), total)
    b.store(total, variable)


def _first(b: ir.IRBuilder, words: ir.Value) -> ir.Value:
    """The first of each pair of bfloat16, as float32."""
    return b.bitcast(b.shl(words, same(I32, 16, BLOCK)), _FLOATS)


def _second(b: ir.IRBuilder, words: ir.Value) -> ir.Value:
    """The second of each pair."""
    return b.bitcast(b.and_(words, same(I32, 0xFFFF0000, BLOCK)), _FLOATS)


def _lanes(b: ir.IRBuilder, x: ir.Value, y: ir.Value, numbers: Sequence[int]) -> ir.Value:
    """Lanes of two vectors, those of the second numbered from 16 on."""
    return b.shuffle_vector(x, y, ir.Constant(vector(I32, len(numbers)), list(numbers)))


def _quarters(numbers: Sequence[int]) -> list[int]:
    """Lanes of quarters of a vector, those of a second vector numbered from 4 on."""
    return [4 * quarter + lane for quarter in numbers for lane in range(4)]


#: Lanes of two vectors, taken so that each stage of four brings words of twice as many rows
#: together. The first two stay within quarters of a register, as the cheapest instructions do.
_STAGES: Sequence[Sequence[Sequence[int]]] = (
    [
        [4 * quarter + lane + other for quarter in range(4) for lane in half for other in (0, 16)]
        for half in ((0, 1), (2, 3))
    ],
    [
        [4 * quarter + lane + other for quarter in range(4) for other in (0, 16) for lane in half]
        for half in ((0, 1), (2, 3))
    ],
    [_quarters((0, 2, 4, 6)), _quarters((1, 3, 5, 7))],
    [_quarters((0, 2, 4, 6)), _quarters((1, 3, 5, 7))],
)


def _sum_each(b: ir.IRBuilder, sums: Sequence[ir.Value]) -> ir.Value:
    """The sums of the lanes of each of 16 vectors, in their order."""
    for low, high in _STAGES:
        sums = [
            b.fadd(_lanes(b, x, y, low), _lanes(b, x, y, high))
            for x, y in zip(sums[::2], sums[1::2], strict=True)
        ]
    return sums[0]


#: The columns that ``_turned`` arrives at, in their order.
_COLUMNS = [4 * quarter + lane for lane in range(4) for quarter in (0, 2, 1, 3)]


def _turned(b: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """The columns of 16 rows of 16 words."""
    groups = [[row] for row in rows]
    for sides in _STAGES:
        groups = [
            [_lanes(b, *pair, side) for pair in zip(*two, strict=True) for side in sides]
            for two in zip(groups[::2], groups[1::2], strict=True)
        ]
    return [groups[0][_COLUMNS.index(column)] for column in range(BLOCK)]
