"""A trial: does the engine compute for a class of models what its own forward pass does?

A narrow model of the class with random weights answers requests that come in chunks, packed with
others, over scattered pages with NaN in all places that were not written; and then each request
alone, by its own attention.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from kvhouse.core.step import Row, StepPlan
from kvhouse.engine.adapter import Kind
from kvhouse.engine.kernels.reference import ReferenceKernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import pack
from kvhouse.engine.sequential import Continuation, make_adapter
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.spec import ModelSpec

#: How many tokens each step computes of the requests, two of them.
_STEPS = ((7, 1), (1, 5), (13, 1), (0, 3), (1, 1))
_LENGTHS = tuple(map(sum, zip(*_STEPS, strict=True)))
_BLOCK_SIZE = 4
#: What rounding in float32 stays far below and any mistake far above, of the largest logit.
_TOLERANCE = 1e-3


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model with random weights, such that what a token attends to shows in its logits.

    Raises:
        Exception: The class cannot be built from the config, for whatever reason of its own.
    """
    auto: Any = AutoModelForCausalLM
    with no_init_weights():
        model = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        near_one = weight.dim() == 1 and name.endswith("weight")
        spread = 0.1 if weight.dim() == 1 else 1.5 * weight.shape[-1] ** -0.5
        weight.data.normal_(float(near_one), spread, generator=generator)
    built: PreTrainedModel = model.eval()
    return built


class Trial:
    """The requests, and what a model answers to each alone.

    Raises:
        Exception: The model's own forward pass fails.
    """

    def __init__(self, model: PreTrainedModel, spec: ModelSpec) -> None:
        generator = torch.Generator().manual_seed(1)
        self._model = model
        self._spec = spec
        self._own_attention = model.config._attn_implementation
        self._prompts = [
            torch.randint(5, min(60, spec.vocab_size), (1, length), generator=generator)
            for length in _LENGTHS
        ]
        with torch.inference_mode():
            self._alone = [model(ids, use_cache=False).logits[0] for ids in self._prompts]

    def error(
        self, kind: Kind, continuation: Continuation | None = None, *, fast: bool = False
    ) -> float:
        """The largest error of any logit, over the largest logit of its token; NaN counts.

        Raises:
            Exception: The engine or the model fails on a step.
        """
        if self._model.config._attn_implementation != self._own_attention:
            self._model.set_attn_implementation(self._own_attention)
        layout = KVLayout.of(self._spec, "fp32", _BLOCK_SIZE, dtype="float32")
        kv = _pool(self._spec, layout)
        adapter = make_adapter(
            self._model, ReferenceKernel(kv), self._spec, kind, continuation, fast=fast
        )
        tokens = {number: ids[0].tolist() for number, ids in enumerate(self._prompts)}
        worst = 0.0
        for plan in _plans(len(layout.groups), kv.size.blocks):
            for row, got in zip(plan.rows, adapter.forward(pack(plan, tokens)), strict=True):
                want = self._alone[row.request][row.first + row.count - 1]
                error = float((got - want).abs().max() / want.abs().max())
                worst = max(worst, error) if error == error else torch.inf
        return worst

    def agrees(
        self, kind: Kind, continuation: Continuation | None = None, *, fast: bool = False
    ) -> bool:
        """Whether the engine's answers are the model's own."""
        return self.error(kind, continuation, fast=fast) < _TOLERANCE


def _pool(spec: ModelSpec, layout: KVLayout) -> KVTensors:
    """A pool of NaN with room for the requests and more."""
    blocks = 2 * sum(map(_blocks, _LENGTHS)) * max(1, len(layout.groups))
    kv = KVTensors(spec, layout, PoolSize(blocks, len(_LENGTHS)))
    for layer in kv.layers.values():
        for vectors in layer.vectors:
            vectors.data.fill_(torch.nan)
    kv.states.fill_(255)  # NaN, in every dtype of states
    return kv


def _blocks(tokens: int) -> int:
    return -(-tokens // _BLOCK_SIZE)


def _plans(groups: int, pool: int) -> Iterator[StepPlan]:
    """The steps, over tables that leap through the pool."""
    order = list(range(pool))
    random.Random(0).shuffle(order)
    tables = [
        [[order.pop() for _ in range(_blocks(length))] for _ in range(groups)]
        for length in _LENGTHS
    ]
    first = [0] * len(_LENGTHS)
    for index, counts in enumerate(_STEPS):
        rows = []
        for request, count in enumerate(counts):
            end = first[request] + count
            seen = tuple(tuple(table[: _blocks(end)]) for table in tables[request])
            if count:
                rows.append(Row(request, first[request], count, True, seen, (0,) * groups, request))
            first[request] = end
        yield StepPlan(index, tuple(rows), (), (), ())
