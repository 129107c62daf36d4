"""From logits to the next token."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvhouse.engine.outputs import TokenLogprobs
from kvhouse.engine.sampling_params import SamplingParams

#: Candidates that the search for a nucleus begins with, and by how much it widens.
_FIRST_CANDIDATES = 1024
_WIDEN = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token, and how likely it and others were where that is asked for."""

    token: int
    logprobs: TokenLogprobs | None = None


class Sampler:
    """One request's choices.

    Penalty, temperature, top-k, top-p and min-p are applied in this order, which is that of
    transformers' ``generate``. The uniform number behind a token comes from a counter-based
    generator, Philox (Salmon et al. 2011), with the seed and the sample's number as key and the
    token's position as counter. So it depends on nothing else: not on the batch, not on
    preemptions, not on how often a step was tried.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self._key = seed + (params.sample << 64)
        self._seen = _Seen()

    def choose(self, logits: torch.Tensor, tokens: Sequence[int]) -> Choice:
        """Choose the token that follows ``tokens``.

        Args:
            logits: ``[vocab]``, the largest of them finite.
            tokens: The request's tokens so far, from its prompt's first.
        """
        params = self.params
        scores = logits.double()
        if params.repetition_penalty != 1:
            ids = self._seen.after(tokens, len(scores), scores.device)
            scores = penalised(scores, ids, params.repetition_penalty)
        token = self._draw(scores, len(tokens)) if params.temperature else int(scores.argmax())
        asked = params.logprobs
        return Choice(token, None if asked is None else logprobs(logits, token, asked))

    def _draw(self, scores: torch.Tensor, position: int) -> int:
        ids, weights = candidates(scores, self.params)
        cumulated = weights.cumsum(0)
        generator = np.random.Generator(np.random.Philox(key=self._key, counter=position))
        # In (0, total], so that the first sum to reach it belongs to a token with a weight.
        point = cumulated[-1] * (1 - generator.random())
        return int(ids[torch.searchsorted(cumulated, point)])


def peaks(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """The likeliest token of each row ``[S, vocab]``, and whether its logit is finite.

    One that is not means NaN or infinity somewhere in the row. Numpy finds the largest of a row
    ten times as fast as torch does, on one thread.
    """
    # Only numpy's own dtypes, and float32 is what compiled code gives.
    array = (logits if logits.dtype == torch.float32 else logits.float()).numpy(force=True)
    likeliest = array.argmax(-1)
    usable = np.isfinite(np.take_along_axis(array, likeliest[:, None], -1)[:, 0])
    return likeliest.tolist(), usable.tolist()


class _Seen:
    """Which tokens a request has, kept up to date as it grows."""

    def __init__(self) -> None:
        self._counted = 0
        self._ids: set[int] = set()

    def after(self, tokens: Sequence[int], vocab: int, device: torch.device) -> torch.Tensor:
        """The different ones of ``tokens`` that have logits, in no order."""
        self._ids.update(token for token in tokens[self._counted :] if token < vocab)
        self._counted = len(tokens)
        return torch.tensor(list(self._ids), dtype=torch.int64, device=device)


def penalised(scores: torch.Tensor, ids: torch.Tensor, penalty: float) -> torch.Tensor:
    """Scores ``[vocab]`` with those of ``ids`` made less likely, by Keskar et al. 2019."""
    there = scores[ids]
    return scores.index_copy(0, ids, torch.where(there < 0, there * penalty, there / penalty))


def candidates(scores: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that may be drawn, by ascending id, and their weights.

    Args:
        scores: ``[vocab]``, float64, the largest of them finite.
        params: Temperature above 0, and what to leave out.

    Returns:
        Ids, and weights of which the largest is 1; as shares of their sum they are probabilities.
    """
    # Ratios to the likeliest, so that a tiny temperature overflows nothing.
    scores = (scores - scores.max()) / params.temperature
    ids = torch.arange(len(scores), device=scores.device)
    if 0 < params.top_k < len(scores):
        ids = ids[scores >= scores.topk(params.top_k).values[-1]]
    weights = scores[ids].exp()
    if params.top_p < 1:
        kept = nucleus(weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    if params.min_p:
        kept = weights >= params.min_p  # the likeliest has weight 1
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def nucleus(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """Places, ascending, of the fewest largest weights that reach ``top_p`` of their sum.

    Holtzman et al. 2020. Sorting a whole vocabulary would take longer than all else, so only as
    many of the largest are looked at as it takes.
    """
    wanted = weights.sum() * top_p
    count = _FIRST_CANDIDATES
    while True:
        top = weights.topk(min(count, len(weights)))
        before = top.values.cumsum(0) - top.values
        if count >= len(weights) or before[-1] >= wanted:
            kept = before < wanted
            kept[0] = True
            return top.indices[kept].sort().values
        count *= _WIDEN


def logprobs(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """Log-probabilities by the model itself, before anything is divided, penalised or left out.

    Args:
        logits: ``[vocab]``.
        token: The chosen token.
        count: How many of the likeliest to name; impossible ones are left out.
    """
    scores = logits.double()
    scores = scores - scores.logsumexp(0)
    top = scores.topk(min(count, len(scores)))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return TokenLogprobs(float(scores[token]), tuple(p for p in pairs if p[1] > -torch.inf))
