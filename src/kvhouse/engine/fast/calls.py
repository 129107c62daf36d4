"""Writing and attending of all layers of a step, as operations of a program."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np
import torch

from kvhouse.engine.fast.block import Attention
from kvhouse.engine.kernels.cpu.fields import CALL, Call
from kvhouse.engine.kernels.cpu.kernel import DTYPE_NUMBERS, NumbaKernel, NumbaStep
from kvhouse.engine.kernels.cpu.write import WRITE_TOKENS

#: Calls of a layer: writing, attention of tokens that come alone, and of those that come together.
WRITE, ALONE, TOGETHER = range(3)

_WIDTH = CALL.itemsize // 8
#: Next unit and workers, each in a cache line of its own.
_COUNTERS = 16
#: What a job decides, in the order of the record.
_JOB = tuple(
    CALL.fields[name][1] // 8
    for name in (
        "units",
        "works",
        "shared",
        "unit_heads",
        "part_heads",
        "parts",
        "each",
        "key_tile",
        "partials",
        "partial_bytes",
        "merges",
    )
)
_TABLES = tuple(CALL.fields[name][1] // 8 for name in ("tokens", "tables", "places"))
_SCRATCH = tuple(CALL.fields[name][1] // 8 for name in ("scratch", "scratch_bytes"))


class Calls:
    """Records of three calls for each layer, filled anew for each step.

    Args:
        kernel: The kernel.
        attentions: Each layer's attention, in their order.
        joined: Where its queries, keys and values come, for each:
            ``[T, (heads + 2 * kv_heads) * size]``.
        outs: Where its output goes, for each: ``[T, heads * size]``.
    """

    def __init__(
        self,
        kernel: NumbaKernel,
        attentions: Sequence[Attention],
        joined: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
    ) -> None:
        self._kernel = kernel
        self._attentions = tuple(attentions)
        self._dtype = DTYPE_NUMBERS[joined[0].dtype]
        self._numbers = np.zeros((len(attentions), 3, _WIDTH), np.int64)
        self._counters = np.zeros((len(attentions), 3, _COUNTERS), np.int64)
        records = self._numbers.view(CALL)[..., 0]
        for number, attention in enumerate(attentions):
            for kind in (WRITE, ALONE, TOGETHER):
                self._fix(records[number, kind], attention, joined[number], outs[number])
                at = self._counters[number, kind].ctypes.data
                records[number, kind]["next"], records[number, kind]["workers"] = at, at + 64
        self._groups = self._grouped()

    def function(self, number: int, kind: int) -> int:
        """Address of the function of a layer's call."""
        own = self._kernel.layers[self._attentions[number].layer]
        if kind == WRITE:
            return own.write
        return own.way(self._dtype, alone=kind == ALONE).function

    def data(self, number: int, kind: int) -> int:
        """Address of a layer's call."""
        address: int = self._numbers[number, kind].ctypes.data
        return address

    def fill(self, step: NumbaStep, tokens: int) -> tuple[int, ...]:
        """Put a step into all calls; which calls of attention it needs.

        Args:
            step: What the kernel has prepared.
            tokens: How many the step has.
        """
        self._counters.fill(0)
        alone = {packed.row.count == 1 for packed in step.rows}
        # Memory that one group needs may move what another was given, so all are asked first.
        scratch = max(self._fill(step, tokens, key, at) for key, at in self._groups)
        if len(self._groups) > 1 or len(alone) > 1:
            for key, at in self._groups:
                self._fill(step, tokens, key, at)
        threads = torch.get_num_threads()
        scratch = -(-scratch // 64) * 64
        address = self._kernel.memory.at_least("scratch", scratch * threads)
        self._numbers[:, :, _SCRATCH] = address, scratch
        return tuple(ALONE if one else TOGETHER for one in sorted(alone, reverse=True))

    def _fill(self, step: NumbaStep, tokens: int, key: int, at: Any) -> int:  # noqa: ANN401
        """The calls of layers of one kind; the bytes of scratch that they need."""
        attention = self._attentions[key]
        own = self._kernel.layers[attention.layer]
        tables, places = step.tables_of(own).addresses
        self._numbers[at, :, _TABLES[0]] = tokens
        self._numbers[at, :, _TABLES[1]] = tables
        self._numbers[at, :, _TABLES[2]] = places
        self._numbers[at, WRITE, _JOB[0]] = -(-tokens // WRITE_TOKENS)
        scratch = 8 * attention.size
        for job in step.jobs_of(own, attention.heads, self._dtype):
            call = Call.from_buffer(self._numbers[key, ALONE].copy())
            _, needed = step.give_job(own, call, job, attention.size)
            kind = ALONE if job.alone else TOGETHER
            numbers = np.frombuffer(call, np.int64)
            for field in _JOB:
                self._numbers[at, kind, field] = numbers[field]
            scratch = max(scratch, needed)
        return scratch

    def _fix(
        self,
        record: Any,  # noqa: ANN401 - a record of numpy
        attention: Attention,
        joined: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """What does not change from step to step."""
        own = self._kernel.layers[attention.layer]
        base = np.frombuffer(bytes(own.call), CALL)[0]
        for name in CALL.names:
            record[name] = base[name]
        item = joined.element_size()
        head = attention.size * item
        query = joined.data_ptr()
        key = query + attention.heads * head
        record["dtype"] = self._dtype
        record["key_in"], record["value_in"] = key, key + attention.kv_heads * head
        record["query"], record["out"] = query, out.data_ptr()
        for name in ("query", "key_in", "value_in"):
            record[f"{name}_token"], record[f"{name}_head"] = joined.stride(0) * item, head
        record["query_heads"], record["each"] = attention.heads, 1
        softcap = attention.softcap
        record["query_factor"] = attention.scale if softcap else attention.scale / log(2)
        if softcap:
            record["cap"], record["unit"] = softcap, 1 / log(2)

    def _grouped(self) -> list[tuple[int, Any]]:
        """The first of the layers that share tables and jobs, and where all of them are."""
        found: dict[tuple[int, ...], list[int]] = {}
        for number, attention in enumerate(self._attentions):
            own = self._kernel.layers[attention.layer]
            rows = own.attend.rows, own.way(self._dtype, alone=False).rows
            key = (own.kept.group, *rows, own.lanes, attention.heads, attention.kv_heads)
            found.setdefault((*key, attention.size), []).append(number)
        return [(numbers[0], _where(numbers)) for numbers in found.values()]


def _where(numbers: list[int]) -> Any:  # noqa: ANN401 - an index of numpy
    """A slice if they follow each other, which numpy is faster with."""
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return slice(numbers[0], numbers[-1] + 1)
    return np.array(numbers)
