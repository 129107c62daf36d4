"""Tokens are drawn with the softmax's probabilities, and the draw is a function of the seed."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from kvhouse.engine.sampler import Sampler, candidates, nucleus, penalised
from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.errors import KvhouseError

LOGITS = torch.tensor([-math.inf, 2.0, 0.5, -math.inf, 1.0, -3.0, -math.inf])


def draws(count: int, **params) -> list[int]:
    sampler = Sampler(SamplingParams(**params))
    return [sampler.choose(LOGITS, [0] * position).token for position in range(count)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_frequencies_are_the_softmax(temperature):
    drawn = draws(20_000, temperature=temperature, seed=5)
    weights = [math.exp(logit / temperature) for logit in LOGITS.tolist()]
    counted = Counter(drawn)
    for token, weight in enumerate(weights):
        share = weight / sum(weights)
        deviation = math.sqrt(20_000 * share * (1 - share))
        assert abs(counted[token] - 20_000 * share) <= 4.5 * deviation


def test_greedy_takes_the_likeliest():
    assert draws(3) == [1, 1, 1]


@pytest.mark.parametrize("temperature", [1e-300, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature):
    assert set(draws(200, temperature=temperature, seed=1)) == {1}


def test_a_draw_depends_on_seed_and_position_alone():
    params = {"temperature": 1.0, "seed": 9}
    backwards = Sampler(SamplingParams(**params))
    assert draws(50, **params) == [
        backwards.choose(LOGITS, [0] * p).token for p in reversed(range(50))
    ][::-1]
    assert draws(50, **params) != draws(50, temperature=1.0, seed=10)


def test_neighbouring_seeds_are_unrelated():
    """Seed n at position p + 1 must not repeat seed n + 1 at position p."""
    one, two = draws(400, temperature=3.0, seed=7), draws(400, temperature=3.0, seed=8)
    same = sum(a == b for a, b in zip(one[1:], two[:-1], strict=True))
    assert same < 250


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"temperature": math.inf}, "temperature inf"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**64}, "seed 18446744073709551616"),
    ],
)
def test_impossible_parameters_are_refused(params, reason):
    with pytest.raises(KvhouseError, match=reason):
        SamplingParams(**params)
