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
from kvhouse.engine.kernels.cpu.helpers import Record, place, vector_bytes
from kvhouse.engine.kernels.cpu.intrinsics import (
    fetch_add,
    memory,
    prefetch,
    score,
    weigh,
    widen_across,
)
from kvhouse.engine.kernels.cpu.softmax import begin_unit, end_unit, soften
from kvhouse.engine.kernels.cpu.vectors_ir import FP16, FP32, ITEM_BYTES

#: How many steps of ``lanes`` keys before it is read memory is asked for.
_AHEAD = 2


@njit(error_model="numpy", inline="always")
def attend_units(fmt: int, lanes: int, most: int, width: int, call: Record) -> None:
    """Keys and values: take units until none is left."""
    scratch = call.scratch + fetch_add(call.workers, 1) * call.scratch_bytes
    unit = carray(memory(scratch), (1,), UNIT)[0]
    works = carray(memory(call.works), (call.units // call.each,), WORK)
    size, factor = call.key_size, call.query_factor
    index = fetch_add(call.next, 1)
    while index < call.units:
        work = works[index // call.each]
        begin_unit(call, work, unit, index % call.each, scratch, size, factor)
        unit.chunk = _chunk(unit.head_rows, most)
        for tile in range(work.begin - work.begin % lanes, work.end, call.key_tile):
            end = min(tile + call.key_tile, work.end)
            _score_tile(fmt, lanes, most, call, work, unit, tile, end)
            soften(FP32, call, work, unit, lanes, tile, end)
            _weigh_tile(fmt, lanes, most, width, call, work, unit, tile, end)
        end_unit(call, work, unit)
        index = fetch_add(call.next, 1)


@njit(error_model="numpy", inline="always")
def attend_latent_units(fmt: int, lanes: int, most: int, width: int, call: Record) -> None:
    """Latents: values are the first part of the keys, and all heads share them."""
    scratch = call.scratch + fetch_add(call.workers, 1) * call.scratch_bytes
    unit = carray(memory(scratch), (1,), UNIT)[0]
    works = carray(memory(call.works), (call.units // call.each,), WORK)
    size, factor = call.value_size + call.key_size, call.query_factor
    index = fetch_add(call.next, 1)
    while index < call.units:
        work = works[index // call.each]
        begin_unit(call, work, unit, index % call.each, scratch, size, factor)
        unit.chunk = _chunk(unit.head_rows, most)
        for tile in range(work.begin - work.begin % lanes, work.end, call.key_tile):
            end = min(tile + call.key_tile, work.end)
            _score_latent_tile(fmt, lanes, most, call, work, unit, tile, end)
            soften(FP32, call, work, unit, lanes, tile, end)
            _weigh_tile(fmt, lanes, most, width, call, work, unit, tile, end)
        end_unit(call, work, unit)
        index = fetch_add(call.next, 1)


@njit(error_model="numpy", inline="always")
def _chunk(rows: int, most: int) -> int:
    """Rows of each call where at most so many fit into one: as equal as can be."""
    calls = (rows + most - 1) // most
    return (rows + calls - 1) // calls


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
    item, stride = ITEM_BYTES[fmt], vector_bytes(fmt, call.value_size)
    size, out_stride = 4 * call.key_size, 4 * call.key_tile
    aligned = tile + (end - tile + lanes - 1) // lanes * lanes
    for first in range(tile, end, lanes):
        block, offset = place(call, work, first)
        later = first + _AHEAD * lanes
        if later < aligned:
            next_block, next_offset = place(call, work, later)
            ahead, step = call.keys + next_block + next_offset * item, call.key_head
            scales_ahead, scale_step = call.key_scales + next_block, call.key_scale_head
        else:
            next_block, next_offset = place(call, work, min(tile + later - aligned, first))
            ahead, step = call.values + next_block + next_offset * stride, call.value_head
            scales_ahead, scale_step = call.value_scales + next_block, call.value_scale_head
        out = unit.scores + 4 * (first - tile)
        for turn in range(unit.kv_heads):
            head = unit.head + turn
            scales = call.key_scales + block + head * call.key_scale_head + 2 * offset
            if fmt > FP16:
                prefetch(scales_ahead + head * scale_step)
            for begin in range(0, unit.head_rows, unit.chunk):
                row = turn * unit.head_rows + begin
                score(
                    fmt,
                    lanes,
                    most,
                    min(unit.chunk, unit.head_rows - begin),
                    unit.query + row * size,
                    size,
                    call.keys + block + head * call.key_head + offset * item,
                    call.block_size * item,
                    call.key_size,
                    scales,
                    out + row * out_stride,
                    out_stride,
                    ahead + head * step,
                )


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
        start, offset = place(call, work, first)
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
                unit.across,
            )


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
    aligned = tile + (end - tile + lanes - 1) // lanes * lanes
    for first in range(tile, end, lanes):
        block, offset = place(call, work, first)
        later = first + _AHEAD * lanes
        ahead, step = call.values + block, call.value_head
        scales_ahead, scale_step = call.value_scales + block, call.value_scale_head
        if later < aligned:
            next_block, next_offset = place(call, work, later)
            ahead = call.values + next_block + next_offset * stride
            scales_ahead = call.value_scales + next_block
        elif later - aligned + tile + call.key_tile < work.end:
            next_block, next_offset = place(call, work, later - aligned + tile + call.key_tile)
            ahead, step = call.keys + next_block + next_offset * ITEM_BYTES[fmt], call.key_head
            scales_ahead, scale_step = call.key_scales + next_block, call.key_scale_head
        weights = unit.scores + 4 * (first - tile)
        for turn in range(unit.kv_heads):
            head = unit.head + turn
            scales = call.value_scales + block + head * call.value_scale_head + 2 * offset
            if fmt > FP16:
                prefetch(scales_ahead + head * scale_step)
            for begin in range(0, unit.head_rows, unit.chunk):
                row = turn * unit.head_rows + begin
                weigh(
                    fmt,
                    lanes,
                    width,
                    most,
                    min(unit.chunk, unit.head_rows - begin),
                    weights + row * 4 * call.key_tile,
                    4 * call.key_tile,
                    call.values + block + head * call.value_head + offset * stride,
                    stride,
                    call.value_size,
                    scales,
                    2 * call.block_size,
                    unit.sums + row * size,
                    size,
                    max(work.begin - first, 0),
                    min(work.end - first, lanes),
                    ahead + head * step,
                )
