"""From logits to the next token."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvhouse.errors import KvhouseError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen and what ends it.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        seed: Makes a temperature's choices repeatable, 0 to 2**64 - 1; None draws a fresh one.
        stop_token_ids: Tokens that end the request, besides the model's own end tokens.
        ignore_eos: Whether the model's own end tokens are tokens like any other.

    Raises:
        KvhouseError: A value out of range.
    """

    temperature: float = 0.0
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise KvhouseError(f"temperature {self.temperature}: give a finite number, 0 or more")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise KvhouseError(f"seed {self.seed}: give a whole number from 0 to 2**64 - 1")


class Sampler:
    """One request's choices.

    The uniform number behind a token comes from a counter-based generator, Philox (Salmon et al.
    2011), with the seed as key and the token's position as counter. So it depends on nothing
    else: not on the batch, not on preemptions, not on how often a step was tried.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._seed = secrets.randbits(64) if params.seed is None else params.seed

    def choose(self, logits: torch.Tensor, position: int) -> int:
        """Choose the token at ``position``.

        Args:
            logits: ``[vocab]``, the largest of them finite.
            position: The new token's position in its request.
        """
        if self.params.temperature == 0:
            return int(logits.argmax())
        scores = logits.double()
        weights = ((scores - scores.max()) / self.params.temperature).exp()
        cumulated = weights.cumsum(0)
        generator = np.random.Generator(np.random.Philox(key=self._seed, counter=position))
        # In (0, total], so that the first sum to reach it belongs to a token with a weight.
        point = cumulated[-1] * (1 - generator.random())
        return int(torch.searchsorted(cumulated, point))
