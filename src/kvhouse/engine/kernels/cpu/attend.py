"""Attention over pages, compiled: one unit of a step's work after the other.

A unit is some tokens of one request, query heads that share a KV head, and a range of keys; the
threads take units until none is left. Keys are scored a tile at a time and the softmax is taken as
it goes (Milakov and Gimelshein 2018, arXiv 1805.02867). Where few requests are long, their keys
are split among units, and the last one to finish merges what all of them found (Flash-Decoding,
Dao et al. 2023).

``fmt``, ``lanes``, ``most`` and ``width`` are constants of the compiled code: the KV format, keys
that are scored at once, rows that are multiplied at once, and elements of a value that are.
"""

from __future__ import annotations

from numba import carray, njit

from kvhouse.engine.kernels.cpu.fields import UNIT, WORK
from kvhouse.engine.kernels.cpu.helpers import Record, block_at, vector_bytes
from kvhouse.engine.kernels.cpu.intrinsics import (
    fetch_add,
    memory,
    prefetch,
    score,
    weigh,
    widen_across,
)
from kvhouse.engine.kernels.cpu.softmax import begin_unit, end_unit, soften
from kvhouse.engine.kernels.cpu.vectors_ir import ITEM_BYTES


@njit(error_model="numpy", inline="always")
def attend_units(fmt: int, lanes: int, most: int, width: int, call: Record) -> None:
    """Keys and values: take units until none is left."""
    scratch = call.scratch + fetch_add(call.workers, 1) * call.scratch_bytes
    unit = carray(memory(scratch), (1,), UNIT)[0]
    works = carray(memory(call.works), (call.units // call.each,), WORK)
    index = fetch_add(call.next, 1)
    while index < call.units:
        work = works[index // call.each]
        begin_unit(call, work, unit, index % call.each, scratch, most, call.key_size)
        for tile in range(work.begin - work.begin % lanes, work.end, call.key_tile):
            end = min(tile + call.key_tile, work.end)
            _score_tile(fmt, lanes, most, call, work, unit, tile, end)
            soften(call, work, unit, lanes, tile, end)
            _weigh_tile(fmt, lanes, most, width, call, work, unit, tile, end)
        end_unit(call, work, unit)
        index = fetch_add(call.next, 1)


@njit(error_model="numpy", inline="always")
def attend_latent_units(fmt: int, lanes: int, most: int, width: int, call: Record) -> None:
    """Latents: values are the first part of the keys, and all heads share them."""
    scratch = call.scratch + fetch_add(call.workers, 1) * call.scratch_bytes
    unit = carray(memory(scratch), (1,), UNIT)[0]
    works = carray(memory(call.works), (call.units // call.each,), WORK)
    size = call.value_size + call.key_size
    index = fetch_add(call.next, 1)
    while index < call.units:
        work = works[index // call.each]
        begin_unit(call, work, unit, index % call.each, scratch, most, size)
        for tile in range(work.begin - work.begin % lanes, work.end, call.key_tile):
            end = min(tile + call.key_tile, work.end)
            _score_latent_tile(fmt, lanes, most, call, work, unit, tile, end)
            soften(call, work, unit, lanes, tile, end)
            _weigh_tile(fmt, lanes, most, width, call, work, unit, tile, end)
        end_unit(call, work, unit)
        index = fetch_add(call.next, 1)


@njit(error_model="numpy", inline="always")
def _score_tile(
    fmt: int,
    lanes: int,
    most: int,
    call: Record,
    work: Record,
    unit: Record,
    tile: int,
    end: int,
) -> None:
    """Scores of all rows with the keys of a tile."""
    size, out_stride = 4 * call.key_size, 4 * call.key_tile
    entry, offset = tile // call.block_size, tile % call.block_size
    for first in range(tile, end, lanes):
        start = block_at(call, work, entry) * call.block_bytes
        if offset == 0 or first == tile:
            _fetch(call, work, unit, entry, first)
        out = unit.scores + 4 * (first - tile)
        for head in range(unit.kv_heads):
            number = unit.head + head
            keys = call.keys + start + number * call.key_head + offset * ITEM_BYTES[fmt]
            scales = call.key_scales + start + number * call.key_scale_head + 2 * offset
            for begin in range(0, unit.head_rows, unit.chunk):
                row = head * unit.head_rows + begin
                score(
                    fmt,
                    lanes,
                    most,
                    min(unit.chunk, unit.head_rows - begin),
                    unit.query + row * size,
                    size,
                    keys,
                    call.block_size * ITEM_BYTES[fmt],
                    call.key_size,
                    scales,
                    out + row * out_stride,
                    out_stride,
                )
        offset += lanes
        if offset == call.block_size:
            entry, offset = entry + 1, 0


@njit(error_model="numpy", inline="always")
def _score_latent_tile(
    fmt: int,
    lanes: int,
    most: int,
    call: Record,
    work: Record,
    unit: Record,
    tile: int,
    end: int,
) -> None:
    """The same of latents, which first are widened and turned once for all rows."""
    size, out_stride = 4 * (call.value_size + call.key_size), 4 * call.key_tile
    for first in range(tile, end, lanes):
        entry, offset = first // call.block_size, first % call.block_size
        start = block_at(call, work, entry) * call.block_bytes
        turned = unit.across
        for base, scales, elements in (
            (call.values, call.value_scales, call.value_size),
            (call.keys, call.key_scales, call.key_size),
        ):
            stride = vector_bytes(fmt, elements)
            widen_across(
                fmt,
                lanes,
                base + start + offset * stride,
                stride,
                elements,
                scales + start + 2 * offset,
                2 * call.block_size,
                turned,
            )
            turned += 4 * lanes * elements
        _fetch(call, work, unit, entry, first)
        out = unit.scores + 4 * (first - tile)
        for row in range(0, unit.rows, unit.chunk):
            score(
                0,
                lanes,
                most,
                min(unit.chunk, unit.rows - row),
                unit.query + row * size,
                size,
                unit.across,
                4 * lanes,
                call.value_size + call.key_size,
                unit.across,
                out + row * out_stride,
                out_stride,
            )


@njit(error_model="numpy")
def _fetch(call: Record, work: Record, unit: Record, entry: int, first: int) -> None:
    """Ask for the values of a block that is being scored, and the keys a tile further on."""
    start = block_at(call, work, entry) * call.block_bytes
    _fetch_heads(unit, call.values + start, call.value_head)
    _fetch_heads(unit, call.value_scales + start, call.value_scale_head)
    ahead = first + call.key_tile
    if ahead < work.end:
        start = block_at(call, work, ahead // call.block_size) * call.block_bytes
        _fetch_heads(unit, call.keys + start, call.key_head)
        _fetch_heads(unit, call.key_scales + start, call.key_scale_head)


@njit(error_model="numpy")
def _fetch_heads(unit: Record, start: int, head_bytes: int) -> None:
    prefetch(start + unit.head * head_bytes, unit.kv_heads * head_bytes)


@njit(error_model="numpy", inline="always")
def _weigh_tile(
    fmt: int,
    lanes: int,
    most: int,
    width: int,
    call: Record,
    work: Record,
    unit: Record,
    tile: int,
    end: int,
) -> None:
    """Add up a tile's values, weighted. What lies outside a unit's keys is never added."""
    stride, size = vector_bytes(fmt, call.value_size), 4 * call.value_size
    entry, offset = tile // call.block_size, tile % call.block_size
    for first in range(tile, end, lanes):
        start = block_at(call, work, entry) * call.block_bytes
        weights = unit.scores + 4 * (first - tile)
        for head in range(unit.kv_heads):
            number = unit.head + head
            values = call.values + start + number * call.value_head + offset * stride
            scales = call.value_scales + start + number * call.value_scale_head + 2 * offset
            for begin in range(0, unit.head_rows, unit.chunk):
                row = head * unit.head_rows + begin
                weigh(
                    fmt,
                    lanes,
                    width,
                    most,
                    min(unit.chunk, unit.head_rows - begin),
                    weights + row * 4 * call.key_tile,
                    4 * call.key_tile,
                    values,
                    stride,
                    call.value_size,
                    scales,
                    2 * call.block_size,
                    unit.sums + row * size,
                    size,
                    max(work.begin - first, 0),
                    min(work.end - first, lanes),
                )
        offset += lanes
        if offset == call.block_size:
            entry, offset = entry + 1, 0
