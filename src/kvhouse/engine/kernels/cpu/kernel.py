"""The kernel that Numba compiles for the CPU."""

from __future__ import annotations

import ctypes
from math import log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvhouse.engine.kernels.cpu import threads
from kvhouse.engine.kernels.cpu.fields import Call
from kvhouse.engine.kernels.cpu.layer import CompiledLayer, Way
from kvhouse.engine.kernels.cpu.softmax import UNIT_BYTES
from kvhouse.engine.kernels.cpu.work import Job, Tables, jobs
from kvhouse.engine.kernels.cpu.write import WRITE_TOKENS
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import PackedStep

#: Numbers of the dtypes that compiled code takes.
DTYPE_NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

#: Below so many elements read or written one thread is done sooner than others are woken.
_FEW_ELEMENTS = 100_000


class NumbaKernel:
    """Attention on the pages themselves, in their format.

    What a pool needs is compiled when its kernel is made, or taken from Numba's cache.

    Args:
        kv: The pool's tensors, whose layers ``layer.cannot`` has no objection to.

    Attributes:
        kv: The pool's tensors.
        about: What was chosen, for people.
    """

    def __init__(self, kv: KVTensors) -> None:
        self.kv = kv
        self.about = "compiled by Numba for this processor"
        self.layers = {
            number: CompiledLayer.of(kept, kv.layout.dtype, latent=kept.latent)
            for number, kept in kv.layers.items()
        }
        self.memory = _Memory()

    def prepare(self, step: PackedStep) -> NumbaStep:
        """Tables and shares are computed at the first layer that needs them."""
        return NumbaStep(self, step)


class _Memory:
    """Memory that outlives a step, so that it is not asked for in each."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.int64]] = {}
        self._found: dict[str, tuple[int, int]] = {}
        # A cache line for each, since all threads write to the first.
        self._counters = (ctypes.c_int64 * 16)()
        self._at = ctypes.addressof(self._counters), ctypes.addressof(self._counters) + 64

    def reset_counters(self) -> tuple[int, int]:
        """Addresses of a call's two counters, which are 0."""
        self._counters[0] = self._counters[8] = 0
        return self._at

    def at_least(self, name: str, size: int) -> int:
        """Address of ``size`` bytes, on a border of 64; zeros at first."""
        held, address = self._found.get(name, (0, 0))
        if held < size or not address:
            self._buffers[name] = np.zeros(size // 8 + 9, np.int64)
            address = -(-self._buffers[name].ctypes.data // 64) * 64
            self._found[name] = size, address
        return address


class NumbaStep:
    """One step's rows.

    Attributes:
        rows: They.
    """

    def __init__(self, kernel: NumbaKernel, step: PackedStep) -> None:
        self._kernel = kernel
        self.rows = step.rows
        self._watch = step.watch
        self._tokens = max(packed.stop for packed in step.rows)
        self._threads = torch.get_num_threads()
        self._tables: dict[tuple[int, int], Tables] = {}
        self._jobs: dict[tuple[int, ...], tuple[Job, ...]] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scale: float,
        *,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``AttentionStep.attend``."""
        if key is not None and value is not None:
            self._write(layer, key, value)
        return self._attend(layer, query, scale, softcap, sinks)

    def attend_latent(
        self,
        layer: int,
        query: torch.Tensor,
        latent: torch.Tensor,
        rotary: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """See ``AttentionStep.attend_latent``."""
        self._write(layer, rotary[:, None], latent[:, None])
        return self._attend(layer, query, scale, None, None)

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        before = self._watch.turn("kv_writes")
        own = self._kernel.layers[layer]
        if value.dtype != key.dtype:
            value = value.to(key.dtype)
        key, value = _readable(key), _readable(value)
        call = Call.from_buffer_copy(own.call)
        item = key.element_size()
        call.tokens, call.units = self._tokens, -(-self._tokens // WRITE_TOKENS)
        call.places = self.tables_of(own).addresses[1]
        call.dtype = DTYPE_NUMBERS[key.dtype]
        call.key_in, call.value_in = key.data_ptr(), value.data_ptr()
        call.key_in_token, call.key_in_head = key.stride(0) * item, key.stride(1) * item
        call.value_in_token, call.value_in_head = value.stride(0) * item, value.stride(1) * item
        elements = key.numel() + value.numel()
        self._run(own.write, call, 8 * max(call.key_size, call.value_size), elements)
        self._watch.turn(before)

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        before = self._watch.turn("attention")
        own = self._kernel.layers[layer]
        dtype = query.dtype
        query = _readable(query)
        tokens, heads, size = query.shape
        call = Call.from_buffer_copy(own.call)
        item = query.element_size()
        out = query.new_empty(tokens, heads, call.value_size)
        call.tables = self.tables_of(own).addresses[0]
        call.dtype = DTYPE_NUMBERS[query.dtype]
        call.query, call.out, call.query_heads = query.data_ptr(), out.data_ptr(), heads
        call.query_token, call.query_head = query.stride(0) * item, query.stride(1) * item
        call.query_factor = scale if softcap else scale / log(2)
        if softcap:
            call.cap, call.unit = softcap, 1 / log(2)
        if sinks is not None:
            sinks = sinks.detach().float().contiguous()
            call.sinks = sinks.data_ptr()
        for job in self.jobs_of(own, heads, call.dtype):
            self._do(own, call, job, size)
        self._watch.turn(before)
        return out if out.dtype == dtype else out.to(dtype)

    def _do(self, own: CompiledLayer, call: Any, job: Job, size: int) -> None:  # noqa: ANN401
        way, scratch = self.give_job(own, call, job, size)
        self._run(way.function, call, scratch, job.pairs * (size + call.value_size))

    def give_job(
        self,
        own: CompiledLayer,
        call: Any,  # noqa: ANN401 - a ``Call``
        job: Job,
        size: int,
    ) -> tuple[Way, int]:
        """Put a job into a call; how it is done, and bytes of scratch that each thread needs.

        Args:
            own: The layer.
            call: Its ``Call``.
            job: One of ``jobs_of`` it.
            size: Elements of a query.
        """
        rows, memory, value_size = job.rows, self._kernel.memory, call.value_size
        way = own.way(call.dtype, alone=job.alone)
        call.units, call.each, call.works = len(job.works) * job.each, job.each, job.address
        call.shared, call.parts = job.shared, job.parts
        call.part_heads, call.unit_heads = job.part_heads, job.unit_heads
        call.key_tile = key_tile = way.key_tile(rows)
        if job.merges:
            call.partial_bytes = partial = 4 * rows * (value_size + 2)
            call.partials = memory.at_least("partials", job.records * job.each * partial)
            call.merges = memory.at_least("merges", 8 * job.merges * job.each)
        floats = rows * (size + value_size + key_tile + 2)
        turned = way.turned_bytes(size, value_size, own.lanes, key_tile)
        return way, UNIT_BYTES + 4 * floats + turned

    def _run(self, function: int, call: Any, scratch: int, elements: int) -> None:  # noqa: ANN401
        count = 1 if elements < _FEW_ELEMENTS else min(self._threads, call.units)
        memory = self._kernel.memory
        call.scratch_bytes = scratch = -(-scratch // 64) * 64
        call.scratch = memory.at_least("scratch", scratch * count)
        call.next, call.workers = memory.reset_counters()
        threads.run(function, ctypes.addressof(call), count)

    def tables_of(self, own: CompiledLayer) -> Tables:
        """Where the step's tokens lie in the blocks of a layer's group."""
        key = own.kept.group, own.kept.block_size
        if key not in self._tables:
            self._tables[key] = Tables.of(self.rows, *key)
        return self._tables[key]

    def jobs_of(self, own: CompiledLayer, heads: int, dtype: int) -> tuple[Job, ...]:
        """The step's work for the layers of a group that have so many query heads.

        Args:
            own: One of them.
            heads: Query heads.
            dtype: Of queries, by ``DTYPE_NUMBERS``.
        """
        most = own.way(dtype, alone=True).rows, own.way(dtype, alone=False).rows
        key = own.kept.group, *most, heads, own.kept.vectors[0].heads
        if key not in self._jobs:
            self._jobs[key] = jobs(
                self.rows,
                own.kept,
                self.tables_of(own),
                heads=heads,
                most_rows=most,
                threads=self._threads,
            )
        return self._jobs[key]


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a dtype that compiled code takes, each vector of it in one piece."""
    if tensor.dtype not in DTYPE_NUMBERS:
        tensor = tensor.float()
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()
