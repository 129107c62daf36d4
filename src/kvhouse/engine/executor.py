"""The executor of the engine: a real model on real pages."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from kvhouse.core.step import Row, Sampled, StepPlan, StepResult
from kvhouse.engine.adapter import ModelAdapter
from kvhouse.engine.kernels.reference import ReferenceKernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.load import LoadedModel
from kvhouse.engine.packed import pack
from kvhouse.engine.sampler import Sampler, SamplingParams
from kvhouse.engine.tier_stores import TierStore
from kvhouse.engine.transfers import Transfers


@dataclass(slots=True)
class _Live:
    """What a request needs besides its pages: known token ids, and how the next one is found."""

    tokens: list[int]
    sampler: Sampler
    stops: frozenset[int]
    error: str | None = None


class TorchExecutor:
    """Runs step plans through a model; the seconds it gives are measured.

    A request's tokens are registered with ``add`` before the first plan that names it, and kept
    until ``drop``.

    Args:
        adapter: The model on the pool's pages.
        eos_token_ids: The model's own end tokens.
        transfers: Copies blocks between the pool and what lies below it.
    """

    timing = "measured"

    def __init__(
        self, adapter: ModelAdapter, eos_token_ids: Collection[int], transfers: Transfers
    ) -> None:
        self.adapter = adapter
        self.transfers = transfers
        self.eos_token_ids = frozenset(eos_token_ids)
        self._live: dict[int, _Live] = {}

    @classmethod
    def on(
        cls, kv: KVTensors, loaded: LoadedModel, tiers: Sequence[TierStore] = ()
    ) -> TorchExecutor:
        """The executor of a loaded model on a pool, and on tiers below it.

        Raises:
            UnsupportedModel: The engine would not compute this model exactly.
        """
        adapter = ModelAdapter(loaded.model, ReferenceKernel(kv), loaded.spec)
        return cls(adapter, loaded.eos_token_ids, Transfers(kv, tiers))

    @property
    def requests(self) -> tuple[int, ...]:
        """Ids of the requests that are registered."""
        return tuple(self._live)

    def add(self, request: int, token_ids: list[int], sampling: SamplingParams) -> None:
        """Register a request's prompt; the list then grows with what is sampled."""
        stops = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stops |= self.eos_token_ids
        self._live[request] = _Live(token_ids, Sampler(sampling), stops)

    def drop(self, request: int) -> None:
        """Forget a request that has ended."""
        del self._live[request]

    def tokens(self, request: int) -> Sequence[int]:
        """A request's known token ids: its prompt, then what was sampled."""
        return self._live[request].tokens

    def error(self, request: int) -> str | None:
        """Why a request was ended early, if the model's output for it was of no use."""
        return self._live[request].error

    def execute(self, plan: StepPlan) -> StepResult:
        """Copy blocks, then compute every row of ``plan`` that is not void, and sample."""
        began = time.perf_counter()
        failed = self.transfers.carry_out(plan)
        void = plan.void(failed.loads)
        if void:
            plan = replace(plan, rows=tuple(row for row in plan.rows if row.request not in void))
        sampled = self._compute(plan) if plan.rows else ()
        seconds = time.perf_counter() - began
        return StepResult(seconds, sampled, failed.loads, failed.stores, failed.moves)

    def _compute(self, plan: StepPlan) -> tuple[Sampled, ...]:
        """Compute every row of ``plan`` and sample."""
        tokens = {row.request: self._live[row.request].tokens for row in plan.rows}
        logits = self.adapter.forward(pack(plan, tokens))
        # A peak that is not finite means NaN or infinity somewhere in the row.
        usable = torch.isfinite(logits.amax(-1)).tolist()
        sampling = [row for row in plan.rows if row.samples]
        return tuple(
            self._sample(row, logits[i]) if usable[i] else self._fail(row)
            for i, row in enumerate(sampling)
        )

    def _sample(self, row: Row, logits: torch.Tensor) -> Sampled:
        live = self._live[row.request]
        position = row.first + row.count
        token = live.sampler.choose(logits, position)
        # An earlier try of this step may have been interrupted after it sampled this token.
        live.tokens[position:] = [token]
        return Sampled(row.request, token in live.stops)

    def _fail(self, row: Row) -> Sampled:
        """End one request; the others of the step are not touched."""
        position = row.first + row.count
        self._live[row.request].error = f"the model gave no finite logits at position {position}"
        return Sampled(row.request, stop=True)
