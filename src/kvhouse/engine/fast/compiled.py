"""A decoder that compiled code computes, and its trial against the same in torch."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PreTrainedModel

from kvhouse.core.step import Row, StepPlan
from kvhouse.engine.fast.decoder import FastDecoder
from kvhouse.engine.fast.paths import Paths
from kvhouse.engine.fast.products import products
from kvhouse.engine.fast.program import DecoderProgram
from kvhouse.engine.fast.trial import refuse_other
from kvhouse.engine.fast.turns import TurnTable
from kvhouse.engine.fast.vocabulary import NotUnderstood
from kvhouse.engine.kernels.cpu.kernel import NumbaKernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import PackedStep, pack
from kvhouse.layout import PoolSize
from kvhouse.spec import ModelSpec

#: The fewest tokens that buffers are made for.
_LEAST_TOKENS = 64

#: Tokens of the trial's two requests in each of its steps.
_TRIAL = ((19, 1), (1, 7), (1, 1))


class CompiledDecoder:
    """Embedding in torch, all else in one program; see ``Adapter``.

    Args:
        plain: The same in torch.
        kernel: Attention over the pool's pages.
        spec: The model.

    Attributes:
        model: The model whose weights these are; it goes on working.
        paths: For the load log.

    Raises:
        NotUnderstood: A program cannot compute it.
    """

    def __init__(self, plain: FastDecoder, kernel: NumbaKernel, spec: ModelSpec) -> None:
        self.model: PreTrainedModel = plain.model
        self.kernel = kernel
        self.paths: Paths = replace(plain.paths, compiled=True)
        self._ends = plain.ends
        hows = list(dict.fromkeys(how for _, how in plain.blocks))
        self._turns = [TurnTable(plain.ends, how, spec.max_length) for how in hows]
        sizes = [turn.size for turn in self._turns]
        if any(size % 32 for size in sizes):
            raise NotUnderstood("its rotary embedding is not compiled")
        self._blocks = [(block, hows.index(how)) for block, how in plain.blocks]
        self._products = products([block for block, _ in plain.blocks], plain.ends)
        self._sizes = sizes
        self._program = self._made(_LEAST_TOKENS)

    @torch.inference_mode()
    def forward(self, step: PackedStep) -> torch.Tensor:
        """All rows, and logits ``[S, vocab]`` of those that sample, until the next step."""
        tokens = step.input_ids.shape[1]
        if tokens > self._program.tokens:
            self._program = self._made(1 << (tokens - 1).bit_length())
        program = self._program
        program.stream[:tokens] = self._ends.stream(step.input_ids)
        longest = max(packed.length for packed in step.rows)
        for turn, tables in zip(self._turns, program.tables, strict=True):
            turn.fill(step.position_ids[0], longest, *tables)
        program.run(self.kernel.prepare(step), tokens, step.watch)
        return self._ends.finish(program.logits(step.last))

    def _made(self, tokens: int) -> DecoderProgram:
        return DecoderProgram(self.kernel, self._blocks, self._products, self._sizes, tokens)


@torch.inference_mode()
def compile_decoder(plain: FastDecoder, kernel: NumbaKernel, spec: ModelSpec) -> CompiledDecoder:
    """The decoder as a program, after a trial on a small pool of the same format.

    Raises:
        NotUnderstood: A program cannot compute it, or computes something else.
    """
    made = CompiledDecoder(plain, kernel, spec)
    layout = kernel.kv.layout
    groups = range(len(layout.groups))
    ends = [group.end_block(max(map(sum, zip(*_TRIAL, strict=True)))) for group in layout.groups]
    places = iter(range(2 * sum(ends)))
    tables = [tuple(tuple(next(places) for _ in range(ends[g])) for g in groups) for _ in range(2)]
    size = PoolSize(2 * sum(ends), 1)
    answers = []
    for kind in (plain, made):
        pool = NumbaKernel(KVTensors(spec, layout, size, rotate=kernel.kv.rotated))
        tried = (
            replace(kind, kernel=pool)
            if isinstance(kind, FastDecoder)
            else CompiledDecoder(plain, pool, spec)
        )
        answers.append(_answers(tried, tables, len(groups)))
    for got, wanted in zip(answers[1], answers[0], strict=True):
        refuse_other(got, wanted, layout.format.name)
    return made


def _answers(
    decoder: FastDecoder | CompiledDecoder, tables: list[tuple[tuple[int, ...], ...]], groups: int
) -> list[torch.Tensor]:
    """The logits of each step of two requests."""
    vocab = decoder.model.config.get_text_config(decoder=True).vocab_size
    tokens = {request: [(request * 7 + 3 * i + 5) % vocab for i in range(40)] for request in (0, 1)}
    first, answers = [0, 0], []
    for number, counts in enumerate(_TRIAL):
        rows = tuple(
            Row(request, first[request], count, True, tables[request], (0,) * groups)
            for request, count in enumerate(counts)
        )
        answers.append(decoder.forward(pack(StepPlan(number, rows, (), (), ()), tokens)).clone())
        first = [before + count for before, count in zip(first, counts, strict=True)]
    return answers
