"""A transformers model whose attention reads and writes our pages."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from kvhouse.engine.kernels import AttentionKernel
from kvhouse.engine.packed import PackedStep
from kvhouse.engine.paging import ATTENTION, Forward, PagedCache, under_way
from kvhouse.engine.support import refuse_unsupported
from kvhouse.errors import UnsupportedModel
from kvhouse.spec import LatentAttention, ModelSpec, SharedKV


class ModelAdapter:
    """Runs a causal language model of transformers on packed rows.

    Args:
        model: The model. Its attention is switched over to our pages, so it is of no use outside
            any more.
        kernel: Attention over the pool's pages.
        spec: What the model keeps. Every layer that keeps tokens must call attention once, and
            every one that shares KV must read that of another.

    Raises:
        UnsupportedModel: The engine would not compute this model exactly.
    """

    def __init__(self, model: PreTrainedModel, kernel: AttentionKernel, spec: ModelSpec) -> None:
        refuse_unsupported(model.config)
        self.model = model.train(mode=False)
        self.kernel = kernel
        takes = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in takes else "past_key_values"
        self._selects = "logits_to_keep" in takes
        self._latent = frozenset(_numbers(spec, LatentAttention))
        self._keeping = [
            number
            for number, layer in enumerate(spec.layers)
            if any(part.vectors and not part.across for part in layer.parts)
        ]
        if self._keeping:
            _switch(model)
        self._calls = len(self._keeping) + len(_numbers(spec, SharedKV))

    @torch.inference_mode()
    def forward(self, step: PackedStep) -> torch.Tensor:
        """Compute all rows, and the logits ``[S, vocab]`` of those that sample."""
        forward = Forward(self.kernel.prepare(step), self._latent)
        output = self._pass(step, forward, {self._cache_name: PagedCache(forward)})
        return self._logits(step, output)

    def _pass(self, step: PackedStep, forward: Forward, carried: dict[str, Any]) -> Any:  # noqa: ANN401
        """One forward pass of the model; ``carried`` is what it needs besides the tokens."""
        if self._selects:
            carried["logits_to_keep"] = step.last
        with under_way(forward):
            output = self.model(
                input_ids=step.input_ids,
                position_ids=step.position_ids,
                use_cache=True,
                **carried,
            )
        self._check(forward.calls)
        return output

    def _logits(self, step: PackedStep, output: Any) -> torch.Tensor:  # noqa: ANN401
        logits: torch.Tensor = output.logits[0]
        return logits if self._selects else logits[step.last]

    def _check(self, calls: list[int]) -> None:
        if len(calls) != self._calls or sorted(set(calls)) != self._keeping:
            raise UnsupportedModel(
                f"{type(self.model).__name__} attended to what layers {calls} keep, and its "
                f"description says {self._keeping}: the engine cannot run it"
            )


def _switch(model: PreTrainedModel) -> None:
    """Lead a model's attention to pages."""
    model.set_attn_implementation(ATTENTION)
    if model.config.get_text_config(decoder=True)._attn_implementation != ATTENTION:
        raise UnsupportedModel(
            f"{type(model).__name__} does not let its attention be replaced, so the engine "
            "cannot run it"
        )


def _numbers(spec: ModelSpec, kind: type) -> list[int]:
    """The layers that are of a kind, or have a part that is."""
    return [
        number
        for number, layer in enumerate(spec.layers)
        if any(isinstance(part, kind) for part in layer.parts)
    ]
