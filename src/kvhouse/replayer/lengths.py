"""Distributions of lengths and durations: each maps a number from 0 to 1 to one of its values."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Protocol

from kvhouse.errors import TraceError
from kvhouse.replayer.randomness import Uniforms
from kvhouse.replayer.trace_request import MOST_TOKENS, TraceRequest

_NORMAL = NormalDist()


class Distribution(Protocol):
    """Whole numbers from 1 on, drawn by inverting their distribution."""

    def at(self, share: float) -> int:
        """The value that a ``share`` of all values lie below, ``share`` between 0 and 1."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every whole number from ``low`` to ``high`` as likely; one value where they are equal."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Raise ``TraceError`` for what is out of range."""
        if not 1 <= self.low <= self.high <= MOST_TOKENS:
            raise TraceError(f"uniform({self.low},{self.high}): give 1 <= low <= high")

    def at(self, share: float) -> int:
        """See ``Distribution``."""
        return min(self.high, self.low + int(share * (self.high - self.low + 1)))


class LogNormal:
    """Log-normal values, those above ``most`` cut to it, rounded to whole numbers from 1 on.

    ``mean`` is the mean of what comes out after the cut, not of the distribution before it (but for
    the rounding, and for values below 1/2 that become 1).
    """

    def __init__(self, mean: float, sigma: float, most: float = MOST_TOKENS) -> None:
        """Args: mean: Above 1. sigma: Standard deviation of the logarithm. most: Above the mean.

        Raises:
            TraceError: One is out of range.
        """
        if not (1 <= mean < most <= MOST_TOKENS and 0 < sigma <= 5):
            raise TraceError(
                f"lognormal({mean:g},{sigma:g},{most:g}): give 1 <= mean < max and 0 < sigma <= 5"
            )
        self.sigma, self.most = sigma, most
        self.mu = self._solve(mean)

    def _cut_mean(self, mu: float) -> float:
        """E[min(X, most)] of a log-normal X, in closed form."""
        z = (math.log(self.most) - mu) / self.sigma
        below = math.exp(mu + self.sigma**2 / 2) * _NORMAL.cdf(z - self.sigma)
        return below + self.most * (1 - _NORMAL.cdf(z))

    def _solve(self, mean: float) -> float:
        low = math.log(mean) - self.sigma**2  # too little even without a cut
        high = math.log(self.most) + 10 * self.sigma  # nearly all of it cut
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self._cut_mean(middle) < mean else (low, middle)
        return low

    def at(self, share: float) -> int:
        """See ``Distribution``."""
        value = math.exp(min(self.mu + self.sigma * _NORMAL.inv_cdf(share), 700.0))
        return max(1, math.floor(min(value, self.most) + 0.5))


class Quantiles:
    """Between given quantiles the logarithm of the value grows linearly."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        """Args: points: Shares from 0 to 1 and their values, in order; the first is 0, the last 1.

        Raises:
            TraceError: Shares or values are out of range or out of order.
        """
        pairs = list(points)
        self._shares = [share for share, _ in pairs]
        values = [value for _, value in pairs]
        if len(pairs) < 2 or self._shares[0] != 0 or self._shares[-1] != 1:
            raise TraceError("quantiles: name max, the largest value, and at least one below it")
        if any(a >= b for a, b in pairwise(self._shares)) or any(
            a > b for a, b in pairwise(values)
        ):
            raise TraceError("quantiles: higher quantiles have higher values, each named once")
        if not 1 <= values[0] <= values[-1] <= MOST_TOKENS:
            raise TraceError(f"quantiles: values are from 1 to {MOST_TOKENS:,}")
        self._logs = [math.log(value) for value in values]

    def at(self, share: float) -> int:
        """See ``Distribution``."""
        above = min(bisect_right(self._shares, share), len(self._shares) - 1)
        left, right = self._shares[above - 1], self._shares[above]
        part = (share - left) / (right - left)
        value = math.exp(self._logs[above - 1] * (1 - part) + self._logs[above] * part)
        return math.floor(value + 0.5)


#: Draws the prompt's and the output's length of the next request.
PairSource = Callable[[], tuple[int, int]]


def independent(prompt: Distribution, output: Distribution, seed: int) -> PairSource:
    """Prompts and outputs that do not depend on each other."""
    prompts, outputs = Uniforms(seed, "prompt"), Uniforms(seed, "output")
    return lambda: (prompt.at(prompts.draw_open()), output.at(outputs.draw_open()))


def empirical(requests: Iterable[TraceRequest], seed: int) -> PairSource:
    """Pairs drawn from those of a trace with replacement, so that the two stay correlated."""
    prompts, outputs = array("i"), array("i")
    for request in requests:
        prompts.append(request.prompt_tokens)
        outputs.append(request.output_tokens)
    chance = Uniforms(seed, "lengths")

    def draw() -> tuple[int, int]:
        index = chance.below(len(prompts))
        return prompts[index], outputs[index]

    return draw


#: Prompts and outputs of published workloads. Kwon et al., "Efficient Memory Management for Large
#: Language Model Serving with PagedAttention" (SOSP 2023), section 6.1, gives ShareGPT's means,
#: 161 and 338 tokens, and no spread. Log-normal with these sigmas is assumed, and at most 1,024
#: tokens each, so that prompt and output fit OPT's 2,048.
PRESETS: dict[str, tuple[Distribution, Distribution]] = {
    "sharegpt": (LogNormal(161, 1.0, 1024), LogNormal(338, 0.75, 1024)),
}
