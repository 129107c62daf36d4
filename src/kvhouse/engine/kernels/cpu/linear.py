"""Matrix products of a decoder on the CPU, on weights that stay where they are.

``Linear`` joins weights ``[N_i, K]`` of one dtype by rows and multiplies ``x [T, K]`` with all of
them in one call::

    qkv = Linear([q.weight, k.weight, v.weight], [q.bias, k.bias, v.bias])
    out = qkv(x)                                                 # [T, sum of N_i]
    mlp = Linear([gate.weight, up.weight], activation="silu", gated=True)
    down = Linear([down.weight])
    y = down(mlp(x), residual=y)                                 # y + ...

Weights are neither copied nor packed, so tied embeddings stay shared, and they must stay alive and
in place (``Linear`` holds on to the tensors). bfloat16 weights take bfloat16 inputs, float32
weights float32 ones. Sums are float32, and bias, activation, gate and residual are applied to them
before they are rounded once. The bfloat16 instruction of the processor takes subnormal numbers for
0 and rounds sums in its own way: each is within ``K * 2**-24`` of the sum of its terms' magnitudes.

``Program`` (module ``program``) runs several of them, norms, rotary embeddings and attention in
one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import llvmlite.binding
import numpy as np
import torch

from kvhouse.engine.kernels.cpu import compiled
from kvhouse.engine.kernels.cpu.linear_ir import BLOCK, FLOATS, PAIRS, PANEL_WORD, SPLIT_PAIRS
from kvhouse.engine.kernels.cpu.linear_units import SUMS_BYTES
from kvhouse.engine.kernels.cpu.program_fields import (
    ACTIVATIONS,
    BFLOAT16,
    BLOCK_ROWS,
    FLOAT32,
    LINEAR,
    OP,
)
from kvhouse.engine.kernels.cpu.station import station

Activation = Literal["silu", "gelu_tanh", "gelu"]

#: Numbers of the dtypes that weights, inputs and outputs have.
DTYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}

_Op: Any = np.ctypeslib.as_ctypes_type(OP)


def cannot(weights: Sequence[torch.Tensor]) -> str | None:
    """Why torch has to multiply with these weights; None where ``Linear`` can."""
    if not _has("avx512f"):
        return "this processor has no AVX-512"
    for weight in weights:
        if weight.device.type != "cpu":
            return f"a weight lies on {weight.device.type}"
        if weight.dtype not in DTYPES or weight.dtype != weights[0].dtype:
            return f"a weight is {weight.dtype}".replace("torch.", "")
        if weight.dim() != 2 or weight.stride(1) != 1:
            return "a weight does not lie row by row"
        if weight.shape[1] != weights[0].shape[1]:
            return "weights differ in their inputs"
        if weight.shape[1] * weight.element_size() % 64 or not weight.numel():
            return f"{weight.shape[1]} inputs in {weight.dtype} are no multiple of 64 bytes"
        if weight.stride(0) != weights[0].stride(0):
            return "weights differ in their strides"
    return None


class Linear:
    """``x @ weights.T + biases``, with what a decoder does to it next.

    Args:
        weights: ``[N_i, K]``, of one dtype, for which ``cannot`` gives no reason.
        biases: ``[N_i]`` or None for each.
        activation: Applied to the product, or to that with the first weight if ``gated``.
        gated: Give the activated product with the first of two weights times that with the
            second, ``[T, N]``.

    Attributes:
        inputs: ``K``.
        outputs: Elements of an output row.
        dtype: Of weights and inputs.

    Raises:
        ValueError: ``cannot`` gives a reason, or the weights are not two of a size if ``gated``.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None] = (),
        *,
        activation: Activation | None = None,
        gated: bool = False,
    ) -> None:
        reason = cannot(weights)
        if reason:
            raise ValueError(f"these weights cannot be multiplied: {reason}")
        if gated and (len(weights) != 2 or weights[0].shape != weights[1].shape):
            raise ValueError("a gate takes two weights of one shape")
        self._weights = [weight.detach() for weight in weights]
        self.dtype = weights[0].dtype
        self.inputs: int = weights[0].shape[1]
        self.outputs: int = weights[0].shape[0] if gated else sum(w.shape[0] for w in weights)
        self.kind = _kind(self.dtype)
        self._blocks = _blocks(self._weights, gated=gated)
        self._bias = _padded(self._weights, biases, gated=gated)
        self._runner = compiled.program_runner(self.kind)
        self._op = self._fixed(ACTIVATIONS[activation], gated=gated)
        self.scratch_bytes: int = SUMS_BYTES + self._op.row_bytes // 4 * PANEL_WORD

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``[T, outputs]``, of the dtype of ``out`` or else of ``x``.

        Args:
            x: ``[T, K]``, of the weights' dtype.
            residual: ``[T, outputs]``, of the output's dtype: added to it.
            out: ``[T, outputs]``, where the result is put; may be ``residual`` itself.
        """
        if x.dtype != self.dtype:
            x = x.to(self.dtype)
        if x.stride(1) != 1:
            x = x.contiguous()
        tokens = x.shape[0]
        if out is None:
            out = x.new_empty(tokens, self.outputs)
        op = self.described()
        self.place(op, x, out, residual)
        if tokens:
            station().run(self._runner, ctypes.addressof(op), 1, self.scratch_bytes)
        return out

    def described(self) -> Any:  # noqa: ANN401 - a record
        """A new operation of these weights, ``OP`` for ctypes; ``place`` says what is missing."""
        return _Op.from_buffer_copy(self._op)

    def place(
        self,
        op: Any,  # noqa: ANN401 - a record
        x: torch.Tensor,
        out: torch.Tensor,
        residual: torch.Tensor | None,
    ) -> None:
        """Say in an operation where its input and output lie.

        Raises:
            ValueError: Their shapes or dtypes do not fit.
        """
        tokens, inputs = x.shape
        if inputs != self.inputs or x.dtype != self.dtype or out.shape != (tokens, self.outputs):
            raise ValueError(
                f"{inputs} inputs and an output of {list(out.shape)} for {tokens} tokens, where "
                f"{self.inputs} and {self.outputs} are meant"
            )
        op.tokens, op.x, op.x_bytes = tokens, x.data_ptr(), x.stride(0) * x.element_size()
        item = out.element_size()
        op.out, op.out_bytes, op.out_dtype = out.data_ptr(), out.stride(0) * item, DTYPES[out.dtype]
        if residual is not None:
            if residual.shape != out.shape or residual.dtype != out.dtype:
                raise ValueError("a residual is not like the output")
            op.residual, op.residual_bytes = residual.data_ptr(), residual.stride(0) * item

    def _fixed(self, activation: int, *, gated: bool) -> Any:  # noqa: ANN401 - a record
        op = _Op()
        weight = self._weights[0]
        op.code, op.x_dtype = LINEAR, DTYPES[self.dtype]
        op.blocks, op.block_count = self._blocks.ctypes.data, len(self._blocks)
        op.row_bytes = self.inputs * weight.element_size()
        op.row_step = weight.stride(0) * weight.element_size()
        op.bias = 0 if self._bias is None else self._bias.data_ptr()
        op.activation, op.gated = activation, int(gated)
        return op


def _kind(dtype: torch.dtype) -> int:
    if dtype == torch.float32:
        return FLOATS
    return PAIRS if _has("avx512bf16") else SPLIT_PAIRS


@cache
def _has(feature: str) -> bool:
    """Whether the processor has a feature, by LLVM's name for it."""
    return bool(llvmlite.binding.get_host_cpu_features().get(feature))


def _blocks(weights: Sequence[torch.Tensor], *, gated: bool) -> Any:  # noqa: ANN401 - an array
    """Where 16 rows after the others lie; of a gate and its other weight by turns."""
    found, column = [], 0
    for weight in weights:
        size, step = weight.shape[0], weight.stride(0) * weight.element_size()
        column = 0 if gated else column
        found.append(
            [
                (weight.data_ptr() + row * step, min(BLOCK, size - row), column + row)
                for row in range(0, size, BLOCK)
            ]
        )
        column += size
    order = zip(*found, strict=True) if gated else found
    return np.array([block for some in order for block in some], BLOCK_ROWS)


def _padded(
    weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None], *, gated: bool
) -> torch.Tensor | None:
    """Biases as the blocks want them, float32 ``[blocks, 16]``; None where there are none."""
    if not any(bias is not None for bias in biases):
        return None
    found = []
    for weight, bias in zip(weights, biases, strict=True):
        size = weight.shape[0]
        row = torch.zeros(-(-size // BLOCK) * BLOCK)
        if bias is not None:
            row[:size] = bias.detach()
        found.append(row.view(-1, BLOCK))
    return (torch.stack(found, 1) if gated else torch.cat(found)).reshape(-1, BLOCK).contiguous()
