"""Several steps of a decoder in one call: ``Program``.

A step of few tokens has hundreds of small operations, whose calls from Python take longer than
many of them. A program is a list of operations on buffers that stay where they are, made once and
run for each step by all of torch's threads together, which wait for each other after each::

    program = Program()
    program.norm(x, norm_weight, 1e-5, out=h)            # buffers of the most tokens of a step
    program.linear(qkv, h, out=q_k_v)
    program.rotary(q_k_v, cosines, sines, heads=12, head_size=64)
    program.call(attend_address, ctypes.addressof(attend_call))
    program.linear(o, attended, out=x, residual=x)
    ...
    program.run(tokens)

Shapes are checked when an operation is added, and tokens against the buffers when it runs. The
operations are records (``program_fields.OP``) in ``program.ops``, a numpy array whose fields may be
changed between runs: ``program.ops["x"][3] = tensor.data_ptr()``. An operation is known by the
number that the method which adds it returns. One Python thread at a time may run a program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kvhouse.engine.kernels.cpu import compiled
from kvhouse.engine.kernels.cpu.linear import DTYPES, Linear
from kvhouse.engine.kernels.cpu.linear_ir import FLOATS
from kvhouse.engine.kernels.cpu.program_fields import CALL, NORM, OP, OP_BYTES, ROTARY
from kvhouse.engine.kernels.cpu.station import station


class Program:
    """Operations that one call runs one after the other.

    Attributes:
        ops: The operations' records, ``program_fields.OP``.
    """

    def __init__(self) -> None:
        self._memory, self.ops = _records(16)
        self._count = 0
        self._most: list[int] = []
        self._kept: list[Any] = []
        self._scratch_bytes = 0
        self._kind: int | None = None
        self._runner = 0

    def linear(
        self,
        linear: Linear,
        x: torch.Tensor,
        *,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> int:
        """Put the product, plus the residual if there is one, into ``out``; see ``Linear``.

        Raises:
            ValueError: Shapes or dtypes do not fit, or the program has weights of another dtype.
        """
        if self._kind not in (None, linear.kind):
            raise ValueError("a program's weights are of one dtype")
        self._kind = linear.kind
        op = linear.described()
        linear.place(op, x, out, residual)
        fields = {name: getattr(op, name) for name, *_ in op._fields_ if name in OP.names}
        return self._add(fields, x.shape[0], linear.scratch_bytes, linear, x, out, residual)

    def norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        *,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        centred: bool = False,
        heads: int = 1,
        index: torch.Tensor | None = None,
    ) -> int:
        """``out[t] = x[t] / sqrt(mean(x[t] ** 2) + epsilon) * weight + bias + residual[t]``.

        Args:
            x: ``[T, >= heads * size]``, float32 or bfloat16.
            weight: float32 ``[size]``; size a multiple of 16.
            epsilon: What keeps the root from 0.
            out: Like ``x``; may be ``x`` itself.
            bias: float32 ``[size]``.
            residual: Like ``out``.
            centred: Subtract the mean first, as LayerNorm does.
            heads: Vectors side by side, each with a norm of its own.
            index: int64 ``[T]``: row ``index[t]`` of ``x`` is read instead of row ``t``.

        Raises:
            ValueError: Shapes or dtypes do not fit.
        """
        size = out.shape[1] // heads
        for vector in (weight, bias):
            if vector is not None:
                _check(vector.shape == (size,) and vector.dtype == torch.float32, "a weight")
                _check(vector.is_contiguous(), "a weight")
        _check(size % 16 == 0 and out.shape[1] == heads * size, "a size")
        _check(x.shape[1] == out.shape[1], "an output")
        _check(heads == 1 or x.dtype == out.dtype, "an output's dtype")
        _check(residual is None or residual.dtype == out.dtype, "a residual's dtype")
        _check(residual is None or residual.shape[1] == out.shape[1], "a residual")
        fields = {
            "code": NORM,
            **_rows("x", x),
            **_rows("out", out),
            **({} if residual is None else _rows("residual", residual)),
            "weight": _address(weight),
            "bias": _address(bias),
            "centred": int(centred),
            "index": _address(index),
            "heads": heads,
            "head_bytes": size * x.element_size(),
            "size": size,
            "epsilon": epsilon,
        }
        most = out.shape[0] if index is None else min(out.shape[0], index.shape[0])
        kept = (x, weight, out, bias, residual, index)
        return self._add(
            fields, most if index is not None else min(most, x.shape[0]), 4 * size, *kept
        )

    def rotary(
        self,
        x: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        *,
        heads: int,
        head_size: int,
    ) -> int:
        """Turn the first ``2 * P`` elements of each head, in place.

        Element ``i`` and its partner ``i + P`` become ``x cos - y sin`` and ``y cos + x sin``, as
        Llama's ``rotate_half`` has it.

        Args:
            x: ``[T, >= heads * head_size]``, float32 or bfloat16: of heads side by side.
            cosines: float32 ``[T, P]``, P a multiple of 16.
            sines: Like ``cosines``.
            heads: How many heads are turned: the first ones.
            head_size: From one head to the next, in elements.

        Raises:
            ValueError: Shapes or dtypes do not fit.
        """
        half = cosines.shape[1]
        _check(half % 16 == 0 and 2 * half <= head_size, "a rotary size")
        _check(x.shape[1] >= heads * head_size, "heads")
        for table in (cosines, sines):
            _check(table.shape == cosines.shape and table.dtype == torch.float32, "a table")
            _check(table.stride() == cosines.stride() and table.stride(1) == 1, "a table")
        fields = {
            "code": ROTARY,
            **_rows("x", x),
            "heads": heads,
            "head_bytes": head_size * x.element_size(),
            "size": 2 * half,
            "cosines": cosines.data_ptr(),
            "sines": sines.data_ptr(),
            "table_bytes": 4 * cosines.stride(0),
        }
        return self._add(fields, min(x.shape[0], cosines.shape[0]), 0, x, cosines, sines)

    def call(self, function: int, data: int) -> int:
        """Call a compiled function, by its address, with ``data`` on all threads.

        It has to share out its work among the threads that call it, as those of ``compiled`` do,
        by counters that are 0 whenever the program begins.
        """
        return self._add({"code": CALL, "function": function, "data": data}, 1 << 62, 0)

    def run(self, tokens: int) -> None:
        """Run it for the first ``tokens`` rows of its buffers.

        Raises:
            ValueError: A buffer has fewer rows.
        """
        self.begin(tokens)
        self.go_on(0, self._count)

    def __len__(self) -> int:
        return self._count

    def begin(self, tokens: int) -> None:
        """Get ready to run, part by part, for the first ``tokens`` rows of its buffers.

        Raises:
            ValueError: A buffer has fewer rows.
        """
        most = min(self._most, default=0)
        if tokens > most:
            raise ValueError(f"{tokens} tokens where buffers have room for {most}")
        if not self._runner:
            kind = FLOATS if self._kind is None else self._kind
            self._runner = compiled.program_runner(kind)
        self.ops["tokens"] = tokens
        self.ops["taken"] = self.ops["present"] = 0

    def go_on(self, first: int, count: int) -> None:
        """Run so many operations from ``first`` on; after ``begin`` each in its turn."""
        if count and self.ops["tokens"][first]:
            address = self.ops.ctypes.data + first * OP_BYTES
            station().run(self._runner, address, count, self._scratch_bytes)

    def _add(self, fields: dict[str, Any], most: int, scratch: int, *kept: Any) -> int:  # noqa: ANN401
        if self._count == len(self.ops):
            memory, ops = _records(2 * self._count)
            ops[: self._count] = self.ops
            self._memory, self.ops = memory, ops
        for name, value in fields.items():
            self.ops[name][self._count] = value
        self._most.append(most)
        self._kept.append(kept)
        self._scratch_bytes = max(self._scratch_bytes, -(-scratch // 64) * 64)
        self._count += 1
        return self._count - 1


def _records(count: int) -> Any:  # noqa: ANN401 - two arrays
    """Memory, and records in it on a border of 64 bytes."""
    memory = np.zeros(count * OP_BYTES + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory, memory[start : start + count * OP_BYTES].view(OP)


def _rows(name: str, tensor: torch.Tensor) -> dict[str, int]:
    _check(tensor.dtype in DTYPES and tensor.stride(1) == 1, f"{name}'s dtype or stride")
    found = {name: tensor.data_ptr(), f"{name}_bytes": tensor.stride(0) * tensor.element_size()}
    return found if name == "residual" else found | {f"{name}_dtype": DTYPES[tensor.dtype]}


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _check(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(f"{what} of an operation does not fit")
