"""A program, compiled: operations one after the other, by all threads together.

A thread that finds an operation's work taken waits until those who took it are done. It counts who
is present, not how many threads there should be: a thread that begins late finds the work done by
the others, and none is waited for in vain.
"""

from __future__ import annotations

from numba import carray, njit

from kvhouse.engine.kernels.cpu.helpers import Record
from kvhouse.engine.kernels.cpu.intrinsics import fetch_add, memory
from kvhouse.engine.kernels.cpu.linear_units import linear_units
from kvhouse.engine.kernels.cpu.program_fields import (
    LINEAR,
    NORM,
    OP,
    OP_BYTES,
    PRESENT,
    ROTARY,
    TAKEN,
)
from kvhouse.engine.kernels.cpu.program_intrinsics import atomic_at, call_with, give_way, relax
from kvhouse.engine.kernels.cpu.token_units import norm_units, rotary_units

#: What a thread adds to the counter of an operation that it leaves; it adds 1 when it comes.
_LEFT = 1 << 32

#: Looks after which a thread that waits lets others have its core: some ten microseconds.
_PATIENCE = 512


@njit(error_model="numpy", inline="always")
def run_program(kind: int, program: Record) -> None:
    """Run all operations; see ``program_fields``."""
    scratch = program.scratch + fetch_add(program.workers, 1) * program.scratch_bytes
    for number in range(program.count):
        address = program.ops + number * OP_BYTES
        op = carray(memory(address), (1,), OP)[0]
        taken, present = address + TAKEN, address + PRESENT
        fetch_add(present, 1)
        if op.code == LINEAR:
            linear_units(kind, op, taken, scratch)
        elif op.code == NORM:
            norm_units(op, taken, scratch)
        elif op.code == ROTARY:
            rotary_units(op, taken)
        else:
            call_with(op.function, op.data)
        fetch_add(present, _LEFT)
        if number + 1 < program.count:
            _wait(present)


@njit(error_model="numpy", inline="always")
def _wait(present: int) -> None:
    """Until as many have left as have come."""
    turns = 0
    seen = atomic_at(present)
    while seen >> 32 != seen & (_LEFT - 1):
        turns += 1
        if turns % _PATIENCE == 0:
            give_way()
        relax()
        seen = atomic_at(present)
