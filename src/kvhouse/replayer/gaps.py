"""Gaps between arrivals: constant, Poisson, or gamma with a chosen burstiness."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, chain, count, repeat
from statistics import NormalDist

from kvhouse.replayer.randomness import Uniforms

_NORMAL = NormalDist()


def exponential(chance: Uniforms, mean: float) -> float:
    """A draw from the exponential distribution."""
    return -mean * math.log(chance.draw_open())


def gamma(chance: Uniforms, shape: float) -> float:
    """A draw from the gamma distribution of scale 1.

    Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); a shape below 1 by
    their boost from ``shape`` + 1.
    """
    if shape < 1:
        boosted = gamma(chance, shape + 1)
        return boosted * math.exp(math.log(chance.draw_open()) / shape)
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x = _NORMAL.inv_cdf(chance.draw_open())
        v = (1 + c * x) ** 3
        if v > 0 and math.log(chance.draw_open()) < x * x / 2 + d - d * v + d * math.log(v):
            return d * v


def arrivals(rate: float, cv: float, seed: int) -> Iterator[int]:
    """Endless times in nanoseconds, the first 0, ``rate`` a second on average.

    Args:
        rate: Requests a second.
        cv: Coefficient of variation of the gaps: 0 for constant ones, 1 for a Poisson process,
            more for bursts.
        seed: Decides the draws.
    """
    mean = 1e9 / rate
    if cv == 0:
        return (round(index * mean) for index in count())
    chance = Uniforms(seed, "arrivals")
    shape = 1 / (cv * cv)

    def gap(_: None) -> int:
        if cv == 1:
            return round(exponential(chance, mean))
        return round(gamma(chance, shape) * mean / shape)

    return accumulate(chain((0,), map(gap, repeat(None))))
