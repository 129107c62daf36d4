"""Tokens are drawn from the candidates that transformers keeps, with its probabilities."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as theirs

from kvhouse.engine.sampler import Sampler, candidates, logprobs, peaks, penalised
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_with_a_nan_or_an_infinity_is_not_usable(dtype):
    rows = [
        [1.0, 3.0, 3.0, -math.inf],
        [math.nan, 5.0, 1.0, 2.0],
        [1.0, math.inf, 2.0, 3.0],
        [-math.inf] * 4,
        [-2.0, -3.0, -1.0, -4.0],
    ]
    likeliest, usable = peaks(torch.tensor(rows, dtype=dtype))
    assert usable == [True, False, False, False, True]
    assert (likeliest[0], likeliest[4]) == (1, 2)
    assert peaks(torch.empty(0, 7, dtype=dtype)) == ([], [])


@pytest.mark.parametrize("temperature", [1e-300, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature):
    assert set(draws(200, temperature=temperature, seed=1)) == {1}


def test_a_draw_depends_on_seed_and_position_alone():
    params = {"temperature": 1.0, "seed": 9}
    backwards = Sampler(SamplingParams(**params))
    assert (
        draws(50, **params)
        == [backwards.choose(LOGITS, [0] * p).token for p in reversed(range(50))][::-1]
    )
    assert draws(50, **params) != draws(50, temperature=1.0, seed=10)


def test_neighbouring_seeds_are_unrelated():
    """Seed n at position p + 1 must not repeat seed n + 1 at position p."""
    one, two = draws(400, temperature=3.0, seed=7), draws(400, temperature=3.0, seed=8)
    same = sum(a == b for a, b in zip(one[1:], two[:-1], strict=True))
    assert same < 250


def test_samples_have_chances_of_their_own():
    one, two, three = SamplingParams(temperature=1.0, seed=9).samples(3)
    assert draws(50, temperature=1.0, seed=9) == [
        Sampler(one).choose(LOGITS, [0] * p).token for p in range(50)
    ]
    rest = [
        [Sampler(params).choose(LOGITS, [0] * p).token for p in range(50)]
        for params in (one, two, three)
    ]
    assert len(set(map(tuple, rest))) == 3
    with pytest.raises(KvhouseError, match="0 samples"):
        one.samples(0)


def warped(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities by transformers' own processors, in the order in which it applies them."""
    scores, ids = logits.double()[None], torch.zeros(1, 0, dtype=torch.int64)
    warpers = [theirs.TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        warpers.append(theirs.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(theirs.TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(theirs.MinPLogitsWarper(params.min_p))
    for warper in warpers:
        scores = warper(ids, scores)
    return scores[0].softmax(-1)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 300, 3000, 20_000]),
    st.sampled_from([0.2, 1.0, 2.5, 40.0]),
    st.sampled_from([0, 1, 7, 200, 10**6]),
    st.sampled_from([1.0, 0.999, 0.9, 0.3, 1e-6]),
    st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
def test_candidates_are_those_of_transformers(seed, vocab, temperature, top_k, top_p, min_p):
    """In a nucleus of thousands as well, where the search for it widens."""
    torch.manual_seed(seed)
    logits = torch.randn(vocab) * 3
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    want = warped(logits, params)
    ids, weights = candidates(logits.double(), params)
    assert ids.tolist() == want.nonzero()[:, 0].tolist()
    torch.testing.assert_close(weights / weights.sum(), want[ids], rtol=1e-9, atol=0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 29), min_size=1), st.sampled_from([0.5, 1.0, 1.3, 4.0]))
def test_the_penalty_is_that_of_transformers(tokens, penalty):
    torch.manual_seed(len(tokens))
    logits = torch.randn(1, 30).double()
    ids = torch.tensor([tokens])
    want = theirs.RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
    assert torch.equal(penalised(logits[0], ids.unique(), penalty), want[0])


def test_what_a_request_said_counts_as_it_grows():
    """The likeliest token is not repeated, and a token that has no logits disturbs nothing."""
    sampler = Sampler(SamplingParams(repetition_penalty=1e6))
    tokens = [6, 99]
    for _ in range(3):
        tokens.append(sampler.choose(torch.tensor([1.0, 5.0, 3.0, 4.0]), tokens).token)
    assert tokens[2:] == [1, 3, 2]


def test_logprobs_are_the_models_own():
    want = LOGITS.log_softmax(-1).tolist()
    got = logprobs(LOGITS, 4, 2)
    assert got.chosen == pytest.approx(want[4])
    assert [token for token, _ in got.top] == [1, 4]
    assert [value for _, value in got.top] == pytest.approx([want[1], want[4]])
    assert [token for token, _ in logprobs(LOGITS, 1, 50).top] == [1, 4, 2, 5]  # the possible ones
    params = SamplingParams(temperature=3.0, top_k=1, repetition_penalty=9.0, logprobs=0)
    choice = Sampler(params).choose(LOGITS, [4])
    assert choice.token == 1
    assert choice.logprobs.chosen == pytest.approx(want[1])
    assert choice.logprobs.top == ()


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"temperature": math.inf}, "temperature inf"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**64}, "seed 18446744073709551616"),
        ({"sample": -1}, "sample -1"),
        ({"top_k": -1}, "top_k -1"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.1}, "top_p 1.1"),
        ({"min_p": -0.1}, "min_p -0.1"),
        ({"min_p": math.nan}, "min_p nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty 0.0"),
        ({"stop": "text"}, "stop: give a list"),
        ({"stop": ["a", ""]}, "stop: give a list"),
        ({"logprobs": 101}, "logprobs 101"),
    ],
)
def test_impossible_parameters_are_refused(params, reason):
    with pytest.raises(KvhouseError, match=reason):
        SamplingParams(**params)
