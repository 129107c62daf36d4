"""The executor of the engine: a real model on real pages."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch

from kvhouse.core.step import Row, Sampled, StepPlan, StepResult
from kvhouse.engine.adapter import Adapter
from kvhouse.engine.config import EngineConfig
from kvhouse.engine.kernels.choose import make_kernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.load import LoadedModel
from kvhouse.engine.outputs import TokenLogprobs
from kvhouse.engine.packed import pack
from kvhouse.engine.sampler import Sampler, peaks
from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.engine.sequential import make_adapter
from kvhouse.engine.tier_stores import TierStore
from kvhouse.engine.transfers import Transfers
from kvhouse.engine.uncached import UncachedAdapter
from kvhouse.engine.watch import UNWATCHED, Watch


@dataclass(slots=True)
class _Live:
    """What a request needs besides its pages: known token ids, and how the next one is found."""

    tokens: list[int]
    sampler: Sampler
    stops: frozenset[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    error: str | None = None


class TorchExecutor:
    """Runs step plans through a model; the seconds it gives are measured.

    A request's tokens are registered with ``add`` before the first plan that names it, and kept
    until ``drop``.

    Args:
        adapter: The model on the pool's pages.
        eos_token_ids: The model's own end tokens.
        transfers: Copies blocks between the pool and what lies below it.

    Attributes:
        watch: Is told what a step's time goes to; whoever wants to know puts one here.
    """

    timing = "measured"

    def __init__(
        self, adapter: Adapter, eos_token_ids: Collection[int], transfers: Transfers
    ) -> None:
        self.adapter = adapter
        self.transfers = transfers
        self.watch: Watch = UNWATCHED
        self.eos_token_ids = frozenset(eos_token_ids)
        self._live: dict[int, _Live] = {}

    @classmethod
    def on(
        cls,
        kv: KVTensors,
        loaded: LoadedModel,
        config: EngineConfig,
        tiers: Sequence[TierStore] = (),
    ) -> TorchExecutor:
        """The executor of a loaded model on a pool, and on tiers below it.

        Args:
            kv: The pool.
            loaded: The model.
            config: How the model is computed: the kernel, whether the pool is used at all, and
                whether our own forward pass is taken where the model is understood.
            tiers: What lies below the pool.

        Raises:
            UnsupportedModel: The engine would not compute this model exactly.
            KvhouseError: The kernel that is asked for cannot serve this pool.
        """
        adapter: Adapter = UncachedAdapter(loaded.model)
        if config.kv_cache:
            made = make_kernel(kv, config.kernel)
            adapter = make_adapter(
                loaded.model,
                made,
                loaded.spec,
                loaded.kind,
                loaded.continuation,
                fast=config.fast_path and loaded.fast,
            )
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

    def logprobs(self, request: int, position: int) -> TokenLogprobs | None:
        """How likely the token at a position of a request was, where that is asked for."""
        return self._live[request].logprobs.get(position)

    def error(self, request: int) -> str | None:
        """Why a request was ended early, if no token could be found for it."""
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
        self.watch.begin(plan)
        packed = pack(plan, tokens, self.watch if self.watch.fine else UNWATCHED)
        self.watch.turn("model")
        logits = self.adapter.forward(packed)
        self.watch.turn("sampling")
        sampled = self._sample_all(plan, logits)
        self.watch.turn("scheduling")
        return sampled

    def _sample_all(self, plan: StepPlan, logits: torch.Tensor) -> tuple[Sampled, ...]:
        likeliest, usable = peaks(logits)
        sampling = [row for row in plan.rows if row.samples]
        return tuple(
            self._sample(row, likely, logits[i])
            if usable[i]
            else self._fail(row, "the model gave no finite logits")
            for i, (row, likely) in enumerate(zip(sampling, likeliest, strict=True))
        )

    def _sample(self, row: Row, likeliest: int, logits: torch.Tensor) -> Sampled:
        live = self._live[row.request]
        position = row.first + row.count
        # An earlier try of this step may have been interrupted after it sampled this token.
        del live.tokens[position:]
        token = likeliest
        if not live.sampler.params.plain:
            try:
                choice = live.sampler.choose(logits, live.tokens)
            except Exception as error:
                return self._fail(row, f"sampling failed with {type(error).__name__} ({error})")
            token = choice.token
            if choice.logprobs is not None:
                live.logprobs[position] = choice.logprobs
        live.tokens.append(token)
        return Sampled(row.request, token in live.stops)

    def _fail(self, row: Row, reason: str) -> Sampled:
        """End one request; the others of the step are not touched."""
        live, position = self._live[row.request], row.first + row.count
        del live.tokens[position:]
        live.error = f"{reason} at position {position}"
        return Sampled(row.request, stop=True)
