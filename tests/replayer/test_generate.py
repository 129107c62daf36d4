"""Generated traffic against the theory of what it should be, with fixed seeds."""

import math
from collections import defaultdict
from hashlib import sha256
from itertools import islice, pairwise
from statistics import NormalDist, correlation, fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.errors import TraceError
from kvhouse.replayer.gaps import arrivals, gamma
from kvhouse.replayer.generate import distribution_of, most_requests
from kvhouse.replayer.lengths import PRESETS
from kvhouse.replayer.randomness import Uniforms
from kvhouse.replayer.trace_write import write_trace
from kvhouse.replayer.traces import TraceRequest, TraceStream, read_trace

#: The Kolmogorov-Smirnov statistic of n values stays below this over the root of n in 99.9 %.
KS = 1.95
#: Where a distribution is asked for many of its values at equal distances.
MIDDLES = [(index + 0.5) / 10_000 for index in range(10_000)]


def gaps(description: str) -> list[float]:
    times = [request.arrival for request in TraceStream(description)]
    assert times[0] == 0
    return [after - before for before, after in pairwise(times)]


def distance(values, cdf) -> float:
    """The Kolmogorov-Smirnov statistic times the root of the number of values."""
    ordered = sorted(values)
    n = len(ordered)
    steps = (max(cdf(v) - i / n, (i + 1) / n - cdf(v)) for i, v in enumerate(ordered))
    return max(steps) * math.sqrt(n)


def test_poisson_gaps_are_exponential():
    found = gaps("poisson:rate=4,prompt=1,output=1,requests=20001,seed=1")
    assert distance(found, lambda x: 1 - math.exp(-4 * x)) < KS
    assert abs(fmean(found) - 0.25) < 4 * 0.25 / math.sqrt(20_000)
    # Counts of a Poisson process have a variance equal to their mean.
    counts = np.bincount((np.cumsum(found) / 2).astype(int))
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize("cv", [0.5, 2.0, 4.0])
def test_gamma_gaps_have_the_asked_rate_and_burstiness(cv):
    found = gaps(f"gamma:rate=4,cv={cv},prompt=1,output=1,requests=60001,seed=2")
    assert fmean(found) == pytest.approx(0.25, rel=5 * cv / math.sqrt(60_000))
    assert pstdev(found) / fmean(found) == pytest.approx(cv, rel=0.05)


def test_gamma_draws_follow_the_closed_forms():
    def draws(shape):
        chance = Uniforms(5, "test")
        return [gamma(chance, shape) for _ in range(10_000)]

    # A sum of two exponentials; half the square of a normal variable.
    assert distance(draws(2), lambda x: 1 - math.exp(-x) * (1 + x)) < KS
    assert distance(draws(0.5), lambda x: math.erf(math.sqrt(x))) < KS


def test_constant_gaps_do_not_drift():
    times = [r.arrival for r in TraceStream("constant:rate=3,prompt=1,output=1,duration=1000")]
    assert len(times) == 3000
    assert times == [round(index * 1e9 / 3) / 1e9 for index in range(3000)]


def test_a_backlog_is_there_at_once():
    assert {r.arrival for r in TraceStream("backlog:prompt=1,output=1,requests=50")} == {0.0}


@given(st.floats(0.01, 1e4), st.floats(0.1, 5), st.integers(0, 2**64 - 1))
def test_times_never_run_backwards(rate, cv, seed):
    times = list(islice(arrivals(rate, cv, seed), 50))
    assert times == sorted(times)
    assert times[0] == 0


@pytest.mark.parametrize(
    ("mean", "sigma"), [(1155.0, 0.9), (161.0, 1.0), (338.0, 0.75), (20_000.0, 0.3)]
)
def test_lognormal_values_are_lognormal(mean, sigma):
    values = [distribution_of("x", f"lognormal({mean},{sigma})").at(u) for u in MIDDLES]
    normal = NormalDist(math.log(mean) - sigma**2 / 2, sigma)
    assert fmean(values) == pytest.approx(mean, rel=2e-3)
    assert pstdev(values) == pytest.approx(mean * math.sqrt(math.expm1(sigma**2)), rel=0.03)
    for percent in (10, 50, 90, 99):
        expected = math.exp(normal.inv_cdf(percent / 100))
        assert np.percentile(values, percent) == pytest.approx(expected, rel=3e-3, abs=1.01)


@pytest.mark.parametrize(
    ("mean", "sigma", "most"), [(161, 1.0, 1024), (338, 0.75, 1024), (900, 1.2, 1000)]
)
def test_the_mean_is_that_of_what_comes_out(mean, sigma, most):
    text = f"lognormal(mean={mean},sigma={sigma},max={most})"
    values = [distribution_of("x", text).at(u) for u in MIDDLES]
    assert max(values) == most
    assert min(values) >= 1
    assert fmean(values) == pytest.approx(mean, rel=0.002, abs=0.2)


def test_quantiles_are_met_and_logarithms_grow_linearly_between_them():
    draw = distribution_of("x", "quantiles(p50=100,p90=1000,p99=4000,max=8000,min=10)")
    values = [draw.at(u) for u in MIDDLES]
    for percent, expected in ((0, 10), (50, 100), (90, 1000), (99, 4000), (100, 8000)):
        assert np.percentile(values, percent) == pytest.approx(expected, rel=0.01, abs=1)
    assert draw.at(0.25) == round(math.sqrt(10 * 100))
    assert draw.at(0.70) == round(math.sqrt(100 * 1000))


def test_uniform_and_fixed_values():
    values = [distribution_of("x", "uniform(3,6)").at(u) for u in MIDDLES]
    assert {value: values.count(value) for value in set(values)} == dict.fromkeys(
        (3, 4, 5, 6), 2_500
    )
    assert {distribution_of("x", text).at(0.3) for text in ("7", "fixed(7)", "fixed(value=7)")} == {
        7
    }


def test_the_sharegpt_preset_has_the_means_of_the_paper():
    # Kwon et al. 2023, section 6.1: mean prompt 161, mean output 338; OPT takes 2,048 tokens.
    drawn = list(TraceStream("backlog:lengths=sharegpt,requests=40000"))
    assert fmean(r.prompt_tokens for r in drawn) == pytest.approx(161, rel=0.02)
    assert fmean(r.output_tokens for r in drawn) == pytest.approx(338, rel=0.02)
    assert max(r.prompt_tokens + r.output_tokens for r in drawn) <= 2048
    for preset, mean in zip(PRESETS["sharegpt"], (161, 338), strict=True):
        assert fmean(preset.at(u) for u in MIDDLES) == pytest.approx(mean, rel=0.002)


def test_empirical_lengths_are_the_trace_s_pairs():
    def pairs(source):
        return [(r.prompt_tokens, r.output_tokens) for r in TraceStream(source)]

    real = pairs("azure-conv-2023")
    drawn = pairs("poisson:rate=1,lengths=azure-conv-2023,requests=20000")
    assert set(drawn) == set(real)  # of 512 pairs each is missed with probability e^-39
    for column in (0, 1):
        expected = [pair[column] for pair in real]
        mean = fmean(pair[column] for pair in drawn)
        assert abs(mean - fmean(expected)) < 4 * pstdev(expected) / math.sqrt(20_000)
    assert correlation(*zip(*drawn, strict=True)) == pytest.approx(
        correlation(*zip(*real, strict=True)), abs=0.03
    )


def test_lengths_come_from_a_file_too(tmp_path):
    write_trace([TraceRequest(0.0, 11, 7)], tmp_path / "t.csv")
    drawn = TraceStream(f"backlog:lengths={tmp_path}/t.csv,requests=3")
    assert [(r.prompt_tokens, r.output_tokens) for r in drawn] == [(11, 7)] * 3
    with pytest.raises(TraceError, match="no trace nowhere"):
        list(TraceStream("backlog:lengths=nowhere,requests=3"))


def test_tenants_are_drawn_alike():
    drawn = [r.tenant for r in TraceStream("backlog:prompt=1,output=1,requests=9000,tenants=3")]
    assert set(drawn) == {"tenant-1", "tenant-2", "tenant-3"}
    deviation = math.sqrt(9000 * 2 / 9)
    assert all(abs(drawn.count(name) - 3000) < 4 * deviation for name in set(drawn))


def test_requests_and_duration_both_end_a_trace():
    text = "constant:rate=10,prompt=1,output=1"
    assert len(list(TraceStream(f"{text},requests=7"))) == 7
    assert len(list(TraceStream(f"{text},duration=2"))) == 20
    assert len(list(TraceStream(f"{text},duration=2,requests=7"))) == 7


def test_a_seed_gives_one_trace_everywhere_and_each_purpose_its_own_chance(tmp_path):
    def drawn(text):
        return list(TraceStream(text))

    text = (
        "gamma:rate=2,cv=3,prompt=lognormal(1155,0.9),output=uniform(1,99),requests=500,tenants=3"
    )
    first, other = drawn(f"{text},seed=7"), drawn(f"{text},seed=8")
    assert first == drawn(f"{text},seed=7")
    assert [r.arrival for r in first] != [r.arrival for r in other]
    changed = drawn(f"{text.replace('uniform(1,99)', '5')},seed=7")
    assert [(r.arrival, r.prompt_tokens, r.tenant) for r in changed] == [
        (r.arrival, r.prompt_tokens, r.tenant) for r in first
    ]
    write_trace(first, tmp_path / "t.jsonl")
    # So that no machine and no release draws anything else from this seed.
    assert sha256((tmp_path / "t.jsonl").read_bytes()).hexdigest() == (
        "fc4aabdf7e586f9af274a5a67a760fbef18fe9ad2521234d96578ae5f6534a21"
    )


def test_a_description_is_a_trace_wherever_one_is_taken():
    trace = read_trace("poisson:rate=2,prompt=40,output=4,requests=9", limit=5, scale_lengths=0.5)
    assert [(r.prompt_tokens, r.output_tokens) for r in trace.requests] == [(20, 2)] * 5


TALK = "conversations:rate=0.5,pause=30,turns=3,prompt=uniform(5,90),output=uniform(5,200)"


def by_conversation(requests) -> list[list[TraceRequest]]:
    """Turns of one conversation: each begins with all the ids of the turn before, and more."""
    talks: list[list[TraceRequest]] = []
    for request in requests:
        for talk in talks:
            before = talk[-1]
            if before.hash_ids == request.hash_ids[: len(before.hash_ids)]:
                talk.append(request)
                break
        else:
            talks.append([request])
    return talks


def test_each_turn_s_prompt_is_what_was_said_before_and_more():
    requests = list(TraceStream(f"{TALK},requests=400,seed=3,tenants=2"))
    assert [r.arrival for r in requests] == sorted(r.arrival for r in requests)
    talks = by_conversation(requests)
    assert {len(talk) for talk in talks} <= {1, 2, 3}
    assert [len(talk) for talk in talks].count(3) > 100
    for talk in talks:
        assert talk[0].prompt_tokens <= 90
        assert len({request.tenant for request in talk}) == 1
        for before, after in pairwise(talk):
            message = after.prompt_tokens - before.prompt_tokens - before.output_tokens
            assert 5 <= message <= 90
            assert after.arrival > before.arrival
        for request in talk:
            tokens = request.prompt_tokens + request.output_tokens
            assert len(request.hash_ids) == tokens // 16  # whole blocks only
            assert len(set(request.hash_ids)) == len(request.hash_ids)
    pauses = [b.arrival - a.arrival for talk in talks for a, b in pairwise(talk)]
    assert fmean(pauses) == pytest.approx(30, rel=4 / math.sqrt(len(pauses)))


def test_system_prompts_are_shared_in_their_whole_blocks_and_nothing_else_is():
    text = TALK.replace("turns=3", "turns=1") + ",system=100,systems=3,requests=600,block=16"
    requests = list(TraceStream(text))
    heads = defaultdict(int)
    seen: set[int] = set()
    for request in requests:
        assert request.prompt_tokens > 100
        heads[request.hash_ids[:6]] += 1  # 100 tokens are 6 blocks of 16, and a part
        assert not seen & set(request.hash_ids[6:])
        seen |= set(request.hash_ids[6:])
    assert len(heads) == 3
    assert all(abs(times - 200) < 4 * math.sqrt(600 * 2 / 9) for times in heads.values())
    assert len({identity for head in heads for identity in head}) == 18
    assert not seen & {identity for head in heads for identity in head}


def test_conversations_end_before_the_context_does():
    text = TALK.replace("turns=3", "turns=50") + ",context=700,requests=500"
    requests = list(TraceStream(text))
    assert max(r.prompt_tokens + r.output_tokens for r in requests) <= 700
    assert max(r.prompt_tokens + r.output_tokens for r in requests) > 500


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("poisson", "requests is missing, or duration"),
        ("poisson:rate=1,prompt=1,output=1", "requests is missing, or duration"),
        ("backlog:duration=5,prompt=1,output=1", "requests is missing"),
        ("poisson:requests=1,prompt=1,output=1", "rate is missing"),
        ("poisson:requests=1,rate=1,prompt=1", "output is missing"),
        ("gamma:requests=1,rate=1,prompt=1,output=1", "cv is missing"),
        ("poisson:requests=1,rate=1,cv=2", "'cv' is unknown: poisson takes rate, requests"),
        ("poisson:requests=1,requests=2", "requests is there twice"),
        ("poisson:" + "," * 5000, "a description has at most 2,000 characters"),
        ("poisson:requests", "'requests' is not of the form name=value"),
        ("poisson:requests=", "not of the form"),
        ("poisson:requests=0", "requests is '0', not a whole number from 1"),
        ("poisson:requests=1.5", "requests is '1.5', not a whole number"),
        ("poisson:requests=٣", "requests is '٣', not a whole number"),
        ("poisson:requests=1,seed=-1", "seed is '-1'"),
        ("poisson:requests=1,rate=nan,prompt=1,output=1", "rate is 'nan', not a number from 1e-9"),
        ("poisson:requests=1,rate=0,prompt=1,output=1", "rate is '0', not a number from 1e-9"),
        ("constant:requests=1,rate=1e-300,prompt=1,output=1", "rate is '1e-300', not a number"),
        ("gamma:requests=2,rate=1,cv=1e-160,prompt=1,output=1", "cv is '1e-160', not a number"),
        (
            "poisson:requests=200,rate=1e-9,prompt=1,output=1",
            "later than 1e.11: give a higher rate",
        ),
        ("poisson:requests=1,rate=1,lengths=sharegpt,output=1", "one or the other"),
        ("poisson:requests=1,rate=1,lengths=backlog", "lengths is 'backlog': give a trace or"),
        ("poisson:requests=1,rate=1,output=1,prompt=0", r"uniform\(0,0\): give 1 <= low"),
        ("poisson:requests=1,rate=1,output=1,prompt=x", "prompt is 'x': give a number, uniform"),
        ("poisson:requests=1,rate=1,output=1,prompt=f(1)", r"prompt is f\(1\): give uniform"),
        ("poisson:requests=1,rate=1,output=1,prompt=uniform(1)", r"prompt is uniform\(low\)"),
        ("poisson:requests=1,rate=1,output=1,prompt=uniform(2,1)", r"uniform\(2,1\)"),
        ("poisson:requests=1,rate=1,output=1,prompt=uniform(1.5,2)", "takes whole numbers"),
        ("poisson:requests=1,rate=1,output=1,prompt=lognormal(9,9)", "0 < sigma <= 5"),
        ("poisson:requests=1,rate=1,output=1,prompt=lognormal(9,1,8)", "1 <= mean < max"),
        ("poisson:requests=1,rate=1,output=1,prompt=lognormal(9,mean=1)", "'mean' twice"),
        ("poisson:requests=1,rate=1,output=1,prompt=quantiles(p50=9)", "name max"),
        ("poisson:requests=1,rate=1,output=1,prompt=quantiles(p50=9,max=8)", "higher values"),
        ("poisson:requests=1,rate=1,output=1,prompt=quantiles(q50=9,max=9)", "'q50' is none of"),
        ("poisson:requests=1,rate=1,output=1,prompt=quantiles(9,max=9)", "'1' is none of"),
        ("conversations:requests=1,rate=1,prompt=1,output=1,pause=1", "turns is missing"),
        (TALK + ",requests=1,context=9", "turns in a row are longer than that"),
        (TALK + ",requests=1,system=1000000000,block=1", "blocks of 1: give a larger block"),
        (TALK.replace("(5,90)", "(9000000,9000000)") + ",requests=1,block=2", "a larger block"),
    ],
)
def test_descriptions_that_are_refused(text, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        list(TraceStream(text))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "limit", "most"),
    [
        ("poisson:rate=2,requests=90,prompt=1,output=1", None, 90),
        ("poisson:rate=2,requests=90,prompt=1,output=1", 7, 7),
        ("backlog: requests = 90", 700, 90),
        ("poisson:rate=2,duration=90", None, None),
        ("poisson:rate=2,duration=90", 7, 7),
        ("azure-conv-2023", None, None),
        ("requests=90", None, None),
        ("azure-conv-2023", 7, 7),
    ],
)
def test_how_many_requests_there_can_be(source, limit, most):
    assert most_requests(source, limit) == most
