"""A model with recurrent states: a forward pass for each chunk, and one for all that decode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from kvhouse.core.step import Row
from kvhouse.engine.adapter import Adapter, Kind, ModelAdapter
from kvhouse.engine.carriers import States, carrier_of
from kvhouse.engine.fast.choose import fast_path
from kvhouse.engine.fast.paths import UNCHANGED, Paths
from kvhouse.engine.fast.vocabulary import NotUnderstood
from kvhouse.engine.gathering import GatheringCache
from kvhouse.engine.kernels import AttentionKernel
from kvhouse.engine.packed import PackedRow, PackedStep
from kvhouse.engine.paging import ATTENTION, Forward, PagedCache, under_way
from kvhouse.engine.quiet import quiet
from kvhouse.engine.shapes_only import NoAttention, NoPages
from kvhouse.engine.states import StateSlots
from kvhouse.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a model goes on from its states.

    Attributes:
        own_attention: Whether its layers of attention must be its own; else they read pages.
        one_by_one: Whether it goes on for one token at a time only, and takes any longer input
            for the beginning of a text.
        together: Whether requests that compute one token each can share a forward pass.
    """

    own_attention: bool = False
    one_by_one: bool = False
    together: bool = False

    @property
    def reason(self) -> str:
        """In words, why such a model is not packed."""
        reason = "its layers keep recurrent states"
        if self.own_attention:
            reason += ", its attention is not one that a kernel over pages can do"
        if self.one_by_one:
            reason += ", and transformers goes on from them for one token at a time"
        if self.together:
            reason += "; requests that decode do share one"
        return reason


#: From the fastest to the slowest.
CONTINUATIONS = (
    Continuation(together=True),
    Continuation(),
    Continuation(own_attention=True),
    Continuation(one_by_one=True, together=True),
    Continuation(one_by_one=True),
    Continuation(own_attention=True, one_by_one=True),
)


def make_adapter(
    model: PreTrainedModel,
    kernel: AttentionKernel,
    spec: ModelSpec,
    kind: Kind,
    continuation: Continuation | None = None,
    *,
    fast: bool = True,
) -> Adapter:
    """The adapter of a model, as ``support.capability`` found that it can be run.

    Args:
        model: The model.
        kernel: Attention over the pool's pages.
        spec: What the model keeps.
        kind: How it can be run.
        continuation: How it goes on from its states, where it has some.
        fast: Whether our own forward pass is taken where the model is understood.

    Raises:
        UnsupportedModel: The engine would not compute this model exactly.
    """
    if continuation is not None:
        return SequentialAdapter(model, kernel, spec, continuation)
    if kind != "packed":
        return ModelAdapter(model, kernel, spec, kind, Paths(reason="its requests run one by one"))
    paths = UNCHANGED
    if fast:
        try:
            return fast_path(model.train(mode=False), kernel, spec)
        except NotUnderstood as error:
            paths = Paths(reason=str(error))
    return ModelAdapter(model, kernel, spec, kind, paths)


class SequentialAdapter(ModelAdapter):
    """Runs a causal language model of transformers on rows and their states.

    Each chunk has a forward pass of its own, since states pass through all of a pass's tokens. The
    rows of one token that go on from a state are a batch, as transformers knows them.

    Args:
        model: The model. Unless its attention must be its own, that is switched over to our
            pages, so the model is of no use outside any more.
        kernel: Attention over the pool's pages.
        spec: What the model keeps.
        continuation: How it goes on from its states.

    Raises:
        UnsupportedModel: The engine would not compute this model exactly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        kernel: AttentionKernel,
        spec: ModelSpec,
        continuation: Continuation,
    ) -> None:
        paths = Paths(reason="its requests run one by one")
        super().__init__(model, kernel, spec, "per_sequence", paths)
        self._continuation = continuation
        self._carrier = carrier_of(model)
        if self._keeping and not continuation.own_attention:
            self._replace_attention(ATTENTION)
        self._slots = StateSlots(kernel.kv, spec, self._sample())

    @torch.inference_mode()
    def forward(self, step: PackedStep) -> torch.Tensor:
        """Compute all rows, and the logits ``[S, vocab]`` of those that sample."""
        self._slots.begin([packed.row for packed in step.rows])
        logits: dict[int, torch.Tensor] = {}
        decoding: list[PackedStep] = []
        for alone in step.alone():
            row = alone.rows[0].row
            if self._continuation.together and row.first and row.count == 1:
                decoding.append(alone)
            else:
                logits[row.request] = self._forward_row(alone)
        if decoding:
            logits |= self._forward_together(decoding)
        return torch.cat([logits[packed.row.request] for packed in step.rows])

    def _forward_row(self, alone: PackedStep) -> torch.Tensor:
        """The logits of a row that samples, else none."""
        row = alone.rows[0].row
        states, new = self._slots.read(row), []
        for part in self._parts(alone):
            states, output = self._go_on(part, states)
            new.append(self._logits(part, output))
        assert states is not None, "a row has at least one token"
        self._slots.write(row, states)
        return torch.cat(new)

    def _forward_together(self, steps: Sequence[PackedStep]) -> dict[int, torch.Tensor]:
        """The logits of rows of one token each, by their requests."""
        rows = [step.rows[0].row for step in steps]
        step = PackedStep(
            torch.cat([step.input_ids for step in steps]),
            torch.cat([step.position_ids for step in steps]),
            torch.tensor([0]),
            tuple(PackedRow(row, place) for place, row in enumerate(rows)),
        )
        states, output = self._go_on(step, _joined([self._slots.read(row) for row in rows]))
        for place, row in enumerate(rows):
            own = {layer: [t[place : place + 1] for t in held] for layer, held in states.items()}
            self._slots.write(row, own)
        return {
            row.request: output.logits[place : place + int(row.samples), -1]
            for place, row in enumerate(rows)
        }

    @torch.inference_mode()
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
                states, _ = self._go_on(step, states, over_nothing=True)
        assert states is not None
        return states

    def _parts(self, step: PackedStep) -> Iterator[PackedStep]:
        """A row as the model takes it: whole, or token by token."""
        packed = step.rows[0].row
        if not self._continuation.one_by_one or packed.first == 0:
            yield step
            return
        for start in range(packed.count):
            samples = packed.samples and start == packed.count - 1
            first, tables = packed.first + start, packed.tables
            row = Row(packed.request, first, 1, samples, tables, packed.starts, packed.slot)
            yield PackedStep(
                step.input_ids[:, start : start + 1],
                step.position_ids[:, start : start + 1],
                torch.zeros(int(samples), dtype=torch.int64),
                (PackedRow(row, 0),),
            )

    def _go_on(
        self, step: PackedStep, states: States | None, *, over_nothing: bool = False
    ) -> tuple[States, Any]:
        """One forward pass: the states that it leaves, and the model's output."""
        if self._continuation.own_attention:
            return self._with_own_attention(step, states, over_nothing)
        attention = NoAttention() if over_nothing else self.kernel.prepare(_packed(step))
        forward = Forward(attention, self._latent)
        cache = self._carrier.accepted(PagedCache)(forward, step.rows[0].row.first)
        arguments = self._carrier.load(cache, states)
        if self._keeping:
            arguments["position_ids"] = step.position_ids
        with under_way(forward):
            output = self._run(step, arguments)
        self._check(forward.calls, len(self._keeping) + self._sharing)
        return self._carrier.collect(cache, output), output

    def _with_own_attention(
        self, step: PackedStep, states: States | None, over_nothing: bool
    ) -> tuple[States, Any]:
        kind = self._carrier.accepted(NoPages if over_nothing else GatheringCache)
        cache = kind(self.kernel.kv, step.rows[0], self.spec)
        output = self._run(step, self._carrier.load(cache, states))
        self._check(cache.calls, len(self._keeping))
        return self._carrier.collect(cache, output), output


def _packed(step: PackedStep) -> PackedStep:
    """A batch of one token each as a kernel knows it: a row of them, ``[1, T]``."""
    if step.input_ids.shape[0] == 1:
        return step
    return replace(step, input_ids=step.input_ids.T, position_ids=step.position_ids.T)


def _joined(each: Sequence[States | None]) -> States:
    """The states of several requests as those of a batch."""
    held = [states for states in each if states is not None]
    return {
        layer: [torch.cat(kind) for kind in zip(*(one[layer] for one in held), strict=True)]
        for layer in held[0]
    }
