"""A whole decoder as one program of compiled code: two calls a step, whatever its depth."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvhouse.engine.fast.block import Attention, Block
from kvhouse.engine.fast.calls import WRITE, Calls
from kvhouse.engine.fast.norms import Function
from kvhouse.engine.fast.products import BlockProducts, Products, rms
from kvhouse.engine.kernels.cpu.kernel import NumbaKernel, NumbaStep
from kvhouse.engine.kernels.cpu.linear import Linear
from kvhouse.engine.kernels.cpu.program import Program
from kvhouse.engine.watch import UNWATCHED, Part, Watch

#: Cosines and sines, float32 ``[T, size / 2]`` each.
Tables = tuple[torch.Tensor, torch.Tensor]


class DecoderProgram:
    """The blocks of a decoder, and its head, on buffers for a number of tokens.

    Args:
        kernel: Attention over the pool's pages.
        blocks: The blocks, and which of the tables each takes.
        products: Their matrices, and the head's.
        sizes: Elements of a head that each of the tables turns.
        tokens: The most tokens of a step.

    Attributes:
        tokens: The most tokens of a step.
        stream: Where the embedded tokens go, ``[tokens, hidden]``.
        tables: Where cosines and sines go.
    """

    def __init__(
        self,
        kernel: NumbaKernel,
        blocks: Sequence[tuple[Block, int]],
        products: Products,
        sizes: Sequence[int],
        tokens: int,
    ) -> None:
        self.tokens = tokens
        self.tables: list[Tables] = [
            (torch.zeros(tokens, size // 2), torch.zeros(tokens, size // 2)) for size in sizes
        ]
        self._blocks, self._products = blocks, products
        each = products.blocks
        hidden = each[0].qkv.inputs
        self.stream, self._normed, self._branch = (self._buffer(hidden) for _ in range(3))
        self._joined = self._buffer(max(block.qkv.outputs for block in each))
        self._attended = self._buffer(max(block.out.inputs for block in each))
        self._inner = self._buffer(max(block.down.inputs for block in each))
        self._calls = Calls(
            kernel,
            [block.attention for block, _ in blocks],
            [_of_width(self._joined, block.qkv.outputs) for block in each],
            [_of_width(self._attended, block.out.inputs) for block in each],
        )
        self._programs: dict[tuple[int, ...], tuple[Program, list[tuple[Part, int, int]]]] = {}
        self._last = torch.zeros(tokens, dtype=torch.int64)
        self._logits, self._head = torch.zeros(0, products.head.outputs), Program()

    def run(self, step: NumbaStep, tokens: int, watch: Watch = UNWATCHED) -> None:
        """Compute the blocks for the first ``tokens`` rows of ``stream``, in place.

        Args:
            step: What the kernel has prepared.
            tokens: How many the step has.
            watch: Where somebody wants to know what the time goes to, the program runs in parts.
        """
        kinds = self._calls.fill(step, tokens)
        if kinds not in self._programs:
            self._programs[kinds] = self._build(kinds)
        program, parts = self._programs[kinds]
        if watch is UNWATCHED:
            program.run(tokens)
            return
        program.begin(tokens)
        for part, first, count in parts:
            watch.turn(part)
            program.go_on(first, count)
        watch.turn("model")

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Logits of rows of ``stream``, float32 ``[S, vocab]``; overwritten by the next call."""
        count = len(last)
        if count > len(self._logits):
            self._logits = torch.zeros(count, self._products.head.outputs)
            norm, self._head = self._products.norm, Program()
            self._head.norm(self.stream, norm.weight, norm.eps, out=self._normed, index=self._last)
            normed = self._normed[:count]
            self._head.linear(self._products.head, normed, out=self._logits)
        self._last[:count] = last
        if count:
            self._head.run(count)
        return self._logits[:count]

    def _buffer(self, width: int) -> torch.Tensor:
        return torch.zeros(self.tokens, width, dtype=self._products.head.dtype)

    def _build(self, kinds: tuple[int, ...]) -> tuple[Program, list[tuple[Part, int, int]]]:
        """The program of steps whose attention comes in these kinds, and its parts.

        Of each part: what it is, its first operation and their number.
        """
        program, parts, begun = Program(), list[tuple[Part, int, int]](), 0
        for number, (block, table) in enumerate(self._blocks):
            products = self._products.blocks[number]
            before, after, before_mlp, after_mlp = block.norms
            x = self._normalise(program, before)
            joined = _of_width(self._joined, products.qkv.outputs)
            program.linear(products.qkv, x, out=joined)
            self._turn(program, block.attention, joined, table)
            for kind in (WRITE, *kinds):
                call = self._calls.function(number, kind), self._calls.data(number, kind)
                at = program.call(*call)
                if at > begun:
                    parts.append(("model", begun, at - begun))
                parts.append(("kv_writes" if kind == WRITE else "attention", at, 1))
                begun = at + 1
            attended = _of_width(self._attended, products.out.inputs)
            self._add(program, products.out, attended, after)
            self._mlp(program, products, self._normalise(program, before_mlp), after_mlp)
        parts.append(("model", begun, len(program) - begun))
        return program, parts

    def _normalise(self, program: Program, norm: Function | None) -> torch.Tensor:
        """The stream through a norm, where there is one."""
        if norm is None:
            return self.stream
        weight = rms(norm)
        program.norm(self.stream, weight.weight, weight.eps, out=self._normed)
        return self._normed

    def _turn(
        self, program: Program, attention: Attention, joined: torch.Tensor, table: int
    ) -> None:
        """Norms of queries and keys, and their rotary embedding, in place."""
        size, start = attention.size, 0
        for norm, heads in zip(
            attention.norms or (), (attention.heads, attention.kv_heads), strict=False
        ):
            part = joined[:, start : start + heads * size]
            weight, count = rms(norm), 1 if attention.whole_norms else heads
            program.norm(part, weight.weight, weight.eps, out=part, heads=count)
            start += heads * size
        if attention.turned:
            heads = attention.heads + attention.kv_heads
            program.rotary(joined, *self.tables[table], heads=heads, head_size=size)

    def _mlp(
        self, program: Program, products: BlockProducts, x: torch.Tensor, after: Function | None
    ) -> None:
        inner = _of_width(self._inner, products.down.inputs)
        program.linear(products.gate_up, x, out=inner)
        self._add(program, products.down, inner, after)

    def _add(
        self, program: Program, linear: Linear, x: torch.Tensor, norm: Function | None
    ) -> None:
        """Add a product to the stream, through a norm where there is one."""
        if norm is None:
            program.linear(linear, x, out=self.stream, residual=self.stream)
            return
        weight = rms(norm)
        program.linear(linear, x, out=self._branch)
        program.norm(self._branch, weight.weight, weight.eps, out=self.stream, residual=self.stream)


def _of_width(buffer: torch.Tensor, width: int) -> torch.Tensor:
    """So many columns, one row right behind the other."""
    tokens = len(buffer)
    return buffer.view(-1)[: tokens * width].view(tokens, width)
