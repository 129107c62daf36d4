"""A transformers model whose keys and values lie in our pages."""

from __future__ import annotations

import inspect
from typing import Any, Literal, Protocol

import torch
from transformers import PreTrainedModel

from kvhouse.engine.fast.paths import UNCHANGED, Paths
from kvhouse.engine.gathering import GatheringCache
from kvhouse.engine.kernels import AttentionKernel
from kvhouse.engine.packed import PackedStep
from kvhouse.engine.paging import ATTENTION, MASKED_ATTENTION, Forward, PagedCache, under_way
from kvhouse.errors import UnsupportedModel
from kvhouse.spec import Indexer, LatentAttention, ModelSpec, SharedKV

#: ``packed``: all rows of a step in one forward pass. ``per_sequence``: a pass for each row.
Kind = Literal["packed", "per_sequence"]


class Adapter(Protocol):
    """A model that computes the rows of a step."""

    @property
    def model(self) -> PreTrainedModel:
        """The model."""
        ...

    @property
    def paths(self) -> Paths:
        """Which way its blocks are computed."""
        ...

    def forward(self, step: PackedStep) -> torch.Tensor:
        """Compute all rows, and the logits ``[S, vocab]`` of those that sample."""
        ...


class ModelAdapter:
    """Runs a causal language model of transformers on a step's rows.

    Args:
        model: The model. Packed, its attention is switched over to our pages, so it is of no use
            outside any more.
        kernel: Attention over the pool's pages.
        spec: What the model keeps. Every layer that keeps tokens must bring them once, and packed
            every one that shares KV must read that of another.
        kind: ``packed`` or ``per_sequence``, as ``support.capability`` found.
        paths: Why this is not the fast path.

    Raises:
        UnsupportedModel: The engine would not compute this model exactly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        kernel: AttentionKernel,
        spec: ModelSpec,
        kind: Kind = "packed",
        paths: Paths = UNCHANGED,
    ) -> None:
        self.paths = paths
        self.model = model.train(mode=False)
        self.kernel = kernel
        self.spec = spec
        self.kind = kind
        takes = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in takes else "past_key_values"
        self._selects = "logits_to_keep" in takes
        self._latent = frozenset(_numbers(spec, LatentAttention))
        self._keeping = [
            number
            for number, layer in enumerate(spec.layers)
            if any(part.vectors and not part.across for part in layer.parts)
        ]
        self._sharing = len(_numbers(spec, SharedKV))
        if kind == "packed":
            self._replace_attention(MASKED_ATTENTION if _numbers(spec, Indexer) else ATTENTION)

    def _replace_attention(self, name: str) -> None:
        self.model.set_attn_implementation(name)
        if self.model.config.get_text_config(decoder=True)._attn_implementation != name:
            raise UnsupportedModel("its attention cannot be replaced")

    @torch.inference_mode()
    def forward(self, step: PackedStep) -> torch.Tensor:
        """Compute all rows, and the logits ``[S, vocab]`` of those that sample."""
        if self.kind == "packed":
            return self._forward_packed(step)
        return torch.cat([self._forward_alone(one) for one in step.alone()])

    def _forward_packed(self, step: PackedStep) -> torch.Tensor:
        forward = Forward(self.kernel.prepare(step), self._latent)
        with under_way(forward):
            arguments = {self._cache_name: PagedCache(forward), "position_ids": step.position_ids}
            output = self._run(step, arguments)
        self._check(forward.calls, len(self._keeping) + self._sharing)
        return self._logits(step, output)

    def _forward_alone(self, step: PackedStep) -> torch.Tensor:
        cache = GatheringCache(self.kernel.kv, step.rows[0], self.spec)
        output = self._run(step, {self._cache_name: cache})
        self._check(cache.calls, len(self._keeping))
        return self._logits(step, output)

    def _run(self, step: PackedStep, arguments: dict[str, Any]) -> Any:  # noqa: ANN401
        """One forward pass; ``arguments`` are what the model takes besides the tokens."""
        if self._selects:
            arguments["logits_to_keep"] = step.last
        return self.model(input_ids=step.input_ids, use_cache=True, **arguments)

    def _logits(self, step: PackedStep, output: Any) -> torch.Tensor:  # noqa: ANN401
        """The logits of the rows that sample."""
        logits: torch.Tensor = output.logits[0]
        return logits if self._selects else logits[step.last]

    def _check(self, calls: list[int], expected: int) -> None:
        if len(calls) != expected or sorted(set(calls)) != self._keeping:
            raise UnsupportedModel(
                f"its attention reads cached keys {len(calls)} times, of {len(set(calls))} layers; "
                f"its description says {expected} times, of {len(self._keeping)}"
            )


def _numbers(spec: ModelSpec, kind: type) -> list[int]:
    """The layers that are of a kind, or have a part that is."""
    return [
        number
        for number, layer in enumerate(spec.layers)
        if any(isinstance(part, kind) for part in layer.parts)
    ]
