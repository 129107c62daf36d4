"""How a request's tokens are chosen and what ends it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvhouse.errors import KvhouseError

#: The most alternatives whose probability is given beside a token's own.
MOST_LOGPROBS = 100


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen and what ends it.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Choose among so many of the likeliest tokens; 0 for all.
        top_p: Choose among the fewest likeliest tokens whose probabilities reach this sum.
        min_p: Leave out tokens whose probability is below this share of the likeliest one's.
        repetition_penalty: Divides the positive logits of tokens that the prompt or the output
            has already, and multiplies the negative ones; 1 leaves them.
        seed: Makes a temperature's choices repeatable, 0 to 2**64 - 1; None draws a fresh one.
        sample: Which of several answers to one prompt this is. Each has chances of its own, and
            number 0 those of a request alone.
        stop: Texts that end the request. The answer ends before the first of them.
        stop_token_ids: Tokens that end the request, besides the model's own end tokens.
        ignore_eos: Whether the model's own end tokens are tokens like any other.
        logprobs: How many of the likeliest tokens to name at each position with their
            log-probabilities, beside the chosen one's; None for no log-probabilities at all.

    Raises:
        KvhouseError: A value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    sample: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise KvhouseError(f"temperature {self.temperature}: give a finite number, 0 or more")
        if self.top_k < 0:
            raise KvhouseError(f"top_k {self.top_k}: give a whole number, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise KvhouseError(f"top_p {self.top_p}: give a number above 0 and up to 1")
        if not 0 <= self.min_p <= 1:
            raise KvhouseError(f"min_p {self.min_p}: give a number from 0 to 1")
        penalty = self.repetition_penalty
        if not (math.isfinite(penalty) and penalty > 0):
            raise KvhouseError(f"repetition_penalty {penalty}: give a finite number above 0")
        for name, value in (("seed", self.seed), ("sample", self.sample)):
            if value is not None and not 0 <= value < 2**64:
                raise KvhouseError(f"{name} {value}: give a whole number from 0 to 2**64 - 1")
        if isinstance(self.stop, str) or "" in self.stop:
            raise KvhouseError("stop: give a list of texts, none of them empty")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise KvhouseError(f"logprobs {self.logprobs}: give a number from 0 to {MOST_LOGPROBS}")

    @property
    def plain(self) -> bool:
        """Whether the likeliest token is all that is asked for."""
        return not self.temperature and self.repetition_penalty == 1 and self.logprobs is None

    def samples(self, count: int) -> tuple[SamplingParams, ...]:
        """Parameters for ``count`` answers to one prompt, each with chances of its own.

        Raises:
            KvhouseError: A count below 1.
        """
        if count < 1:
            raise KvhouseError(f"{count} samples: ask for at least 1")
        return tuple(replace(self, sample=self.sample + number) for number in range(count))
