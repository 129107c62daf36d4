"""A model run on one row at a time: states belong to one request each."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from kvhouse.core.step import Row
from kvhouse.engine.adapter import ModelAdapter
from kvhouse.engine.carriers import States, carrier_of
from kvhouse.engine.kernels import AttentionKernel, AttentionStep
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import PackedRow, PackedStep
from kvhouse.engine.paging import Forward, PagedCache
from kvhouse.engine.quiet import quiet
from kvhouse.engine.states import StateSlots
from kvhouse.spec import ModelSpec


class SequentialAdapter(ModelAdapter):
    """Runs a causal language model of transformers, one forward pass for each row.

    Args:
        model: See ``ModelAdapter``.
        kernel: See there.
        spec: See there.
        kv: The pool, for its slots.

    Raises:
        UnsupportedModel: The engine would not compute this model exactly.
    """

    def __init__(
        self, model: PreTrainedModel, kernel: AttentionKernel, spec: ModelSpec, kv: KVTensors
    ) -> None:
        super().__init__(model, kernel, spec)
        self._carrier = carrier_of(model)
        self._slots = StateSlots(kv, spec, self._sample())

    @torch.inference_mode()
    def forward(self, step: PackedStep) -> torch.Tensor:
        """Compute all rows, and the logits ``[S, vocab]`` of those that sample."""
        self._slots.begin([packed.row for packed in step.rows])
        logits = []
        for packed in step.rows:
            states = self._slots.read(packed.row)
            for part in self._parts(step, packed):
                states, new = self._go_on(part, self.kernel.prepare(part), states)
                logits.append(new)
            assert states is not None, "a row has at least one token"
            self._slots.write(packed.row, states)
        return torch.cat(logits)

    def _sample(self) -> States:
        """States of two tokens, whatever they are: they show the shapes of the model's tensors.

        In passing, a beginning and a continuation have been tried, and transformers has said
        which of its faster code is not installed.
        """
        states = None
        with quiet():
            for first in (0, 1):
                row = PackedRow(Row(0, first, 1, True, ()), 0)
                token, position = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[first]])
                step = PackedStep(token, position, torch.tensor([0]), (row,))
                states, _ = self._go_on(step, _NoAttention(), states)
        assert states is not None
        return states

    def _parts(self, step: PackedStep, packed: PackedRow) -> list[PackedStep]:
        """A row by itself, as the model takes it."""
        row = packed.row
        one_by_one = self._carrier.one_by_one and row.first > 0
        count = 1 if one_by_one else row.count
        parts = []
        for start in range(packed.start, packed.stop, count):
            samples = row.samples and start + count == packed.stop
            first = row.first + start - packed.start
            part = Row(row.request, first, count, samples, row.tables, row.starts, row.slot)
            span = slice(start, start + count)
            parts.append(
                PackedStep(
                    step.input_ids[:, span],
                    step.position_ids[:, span],
                    torch.tensor([count - 1] if samples else [], dtype=torch.int64),
                    (PackedRow(part, 0),),
                )
            )
        return parts

    @torch.inference_mode()
    def _go_on(
        self, step: PackedStep, attention: AttentionStep, states: States | None
    ) -> tuple[States, torch.Tensor]:
        """One forward pass: the states that it leaves, and its logits."""
        forward = Forward(attention, self._latent)
        cache = self._carrier.accepted(PagedCache)(forward, step.rows[0].row.first)
        output = self._pass(step, forward, self._carrier.load(cache, states))
        return self._carrier.collect(cache, output), self._logits(step, output)


class _NoAttention:
    """Stands in for attention where only shapes matter."""

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
        """Zeros."""
        del layer, key, scale, softcap, sinks
        return query.new_zeros(*query.shape[:2], (query if value is None else value).shape[-1])

    def attend_latent(
        self,
        layer: int,
        query: torch.Tensor,
        latent: torch.Tensor,
        rotary: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Zeros."""
        del layer, rotary, scale
        return query.new_zeros(*query.shape[:2], latent.shape[-1])
