"""Traffic to batch: against simulated queues, the replay of a real trace, and its own equation."""

import heapq
import math
import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse import spec
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.planner.traffic import Traffic
from kvhouse.planner.traffic.load import load
from kvhouse.planner.traffic.stay import Stay
from kvhouse.replayer import read_trace, replay
from kvhouse.spec.model import FullAttention, ModelSpec

CARD = Device("card", "", 24 * 2**30, 1e12, {"float16": 1e14, "float32": 1e13}, "datasheet", "")
SEVEN_B = spec.load("llama-2-7b")
ROOFLINE = Roofline(SEVEN_B, KVLayout.of(SEVEN_B, "fp16"), CARD)
#: 1 GiB of weights and next to no KV, so that a step takes the same time whatever its batch.
STEADY = ModelSpec(
    "m", "M", (FullAttention(1, 1, 1, 1),), 1, 1, 10**6, 2**29, 2**29, "float16"
)  # fmt: skip


class Clock:
    """Stands in for a roofline: chosen times, linear in the batch."""

    def __init__(self, prefill, step, growth):
        self.times = prefill, step, growth

    def prefill(self, tokens):
        del tokens
        return type("Cost", (), {"seconds": self.times[0]})

    def decode_floor(self, batch, context):
        del context
        return type("Cost", (), {"seconds": self.times[1] + batch * self.times[2]})


def simulated(rate, seconds_of, requests, seed):
    """Number in an M/G/infinity queue at the end of each of its events, with the time before."""
    draw = random.Random(seed)
    now, ends, spent = 0.0, [], {}
    for _ in range(requests):
        now_next = now + draw.expovariate(rate)
        while ends and ends[0] < now_next:
            end = heapq.heappop(ends)
            spent[len(ends) + 1] = spent.get(len(ends) + 1, 0.0) + end - now
            now = end
        spent[len(ends)] = spent.get(len(ends), 0.0) + now_next - now
        now = now_next
        heapq.heappush(ends, now + seconds_of(draw))
    return spent


def mean_and_p99(spent):
    total = math.fsum(spent.values())
    mean = math.fsum(count * time for count, time in spent.items()) / total
    counts = sorted(spent)
    below = accumulate(spent[count] / total for count in counts)
    return mean, next(count for count, share in zip(counts, below, strict=True) if share >= 0.99)


def test_steady_steps_give_the_queue_with_endless_servers():
    lengths = ((10, 100), (10, 400), (10, 1000))
    stay = Stay(Traffic(30.0, lengths), Clock(0.001, 0.002, 0.0))
    # A prefill share of 3 % stretches every step.
    turn = 0.002 / (1 - 30 * 0.001)
    spent = simulated(
        30.0, lambda draw: 0.001 + (draw.choice(lengths)[1] - 1) * turn, 60_000, seed=1
    )
    mean, p99 = mean_and_p99(spent)
    assert stay.mean_batch(30.0) == pytest.approx(mean, rel=0.02)
    assert abs(stay.quantile(30.0, 0.99) - p99) <= 2
    # Poisson: the variance is the mean.
    probabilities = stay.distribution(30.0)
    moments = [sum(p * n**k for n, p in enumerate(probabilities)) for k in (1, 2)]
    assert moments[1] - moments[0] ** 2 == pytest.approx(moments[0], rel=1e-4)


def served_in_turns(rate, outputs, step, growth, requests, seed):
    """An engine that gives each of its requests a token a step; time by requests in it."""
    draw = random.Random(seed)
    now, left, spent = 0.0, [], {}
    arrivals = list(accumulate(draw.expovariate(rate) for _ in range(requests)))
    arrivals.reverse()
    while arrivals:
        while arrivals and arrivals[-1] <= now:
            arrivals.pop()
            left.append(draw.choice(outputs))
        taken = step + growth * len(left) if left else arrivals[-1] - now
        spent[len(left)] = spent.get(len(left), 0.0) + taken
        now += taken
        left = [tokens - 1 for tokens in left if tokens > 1]
    return spent


def test_growing_steps_give_the_batch_of_an_engine_that_shares_them():
    rate, outputs, step, growth = 8.0, (20, 100, 300), 0.004, 0.0006
    spent = served_in_turns(rate, outputs, step, growth, 20_000, seed=2)
    mean, p99 = mean_and_p99(spent)
    lengths = tuple((10, output + 1) for output in outputs)
    stay = Stay(Traffic(rate, lengths), Clock(0.0, step, growth))
    assert stay.mean_batch(rate) == pytest.approx(mean, rel=0.05)
    assert stay.quantile(rate, 0.99) == pytest.approx(p99, rel=0.1)
    # The tail is far longer than that of a Poisson distribution of this mean.
    assert stay.quantile(rate, 0.99) > mean + 3.5 * math.sqrt(mean)


@given(st.floats(0.01, 50), st.integers(1, 3000), st.integers(1, 1000), st.floats(0.1, 1.0))
@settings(max_examples=60, deadline=None)
def test_the_batch_is_rate_times_stay_or_there_is_none(rate, prompt, output, efficiency):
    result = load(
        Traffic.given(rate, prompt, output),
        ROOFLINE,
        8 * 2**30,
        max_length=4096,
        efficiency=efficiency,
    )
    if result.overloaded:
        assert result.mean_batch is None
        assert result.utilisation >= 1 or "16,384" in result.overloaded
        return
    batch, share = result.mean_batch, rate * result.prefill_seconds
    assert batch == pytest.approx(rate * result.stay_seconds)
    low, high = (
        ROOFLINE.decode_floor(n, result.decode_context).seconds / efficiency
        for n in (math.floor(1 + batch), math.floor(1 + batch) + 1)
    )
    step = low + (batch % 1) * (high - low)
    stay = result.prefill_seconds + (output - 1) * step / (1 - share)
    assert batch == pytest.approx(rate * stay)
    assert prompt <= result.held_tokens <= prompt + output / 2
    for policy in result.policies:
        assert policy.largest_rate_p99 <= policy.largest_rate * 1.001
        assert policy.fits_mean >= policy.fits_p99
        assert policy.fits_mean == (rate <= policy.largest_rate) or rate == pytest.approx(
            policy.largest_rate, rel=0.02
        )


def test_a_real_trace_stays_as_long_in_the_replay_and_obeys_littles_law():
    trace = read_trace("azure-conv-2023")
    model = spec.load("llama-3.1-8b")
    card = Device("card", "", 80 * 2**30, 3.35e12, {"bfloat16": 1e15}, "datasheet", "")
    ended = []
    result = replay(trace, model, card, max_running=4096, on_ended=ended.append)
    inside = math.fsum(record.finished - record.admitted for record in ended)
    assert result.running.mean * result.makespan_seconds == pytest.approx(inside)
    traffic = Traffic.measured(
        (request.arrival, request.prompt_tokens, request.output_tokens)
        for request in trace.requests
    )
    planned = load(
        traffic,
        Roofline(model, KVLayout.of(model), card),
        result.pool.bytes,
        max_length=model.max_length,
    )
    assert planned.stay_seconds == pytest.approx(result.latency_seconds.mean, rel=0.05)
    # The replay's clock runs on after the last arrival until all are served.
    expected = traffic.rate * inside / len(ended)
    assert planned.mean_batch == pytest.approx(expected, rel=0.05)
    assert planned.kv_bytes_mean == pytest.approx(
        result.ledger.mean_bytes["used"] * planned.mean_batch / result.running.mean, rel=0.05
    )


def test_paged_requests_count_by_what_they_hold_and_others_by_what_they_reserve():
    result = load(Traffic.given(0.01, 1000, 201), ROOFLINE, 8 * 2**30, max_length=4096)
    # 8 GiB are 1,024 blocks of 16 tokens, 51 of which paged admissions leave free.
    assert 1090 < result.held_tokens < 1000 + 201 / 2
    found = {policy.policy: policy.requests for policy in result.policies}
    assert found == {
        "contiguous-max": 1024 // 256,
        "contiguous-pow2": 1024 // 79,  # 1,000 and 256 tokens
        "contiguous-oracle": 1024 // 76,  # 1,201 tokens
        "paged": (1024 - 51) // 69,  # 1,090 to 1,100 tokens
    }
    assert result.kv_bytes_p99 == result.p99_batch * 69 * 16 * 524_288


def test_a_trace_is_measured():
    traffic = Traffic.measured([(10.0, 5, 1), (11.0, 7, 3), (14.0, 6, 2)])
    assert traffic.rate == 0.5
    assert traffic.basis == "measured"
    assert (traffic.prompts.mean, traffic.prompts.p50, traffic.prompts.max) == (6, 6, 7)
    assert traffic.totals.p99 == 10


def test_overload_says_by_what():
    crowd = load(Traffic.given(400, 1000, 300), ROOFLINE, 2**33, max_length=4096)
    assert crowd.overloaded.startswith("overloaded: prefills alone need")
    assert crowd.ceiling == 0.0
    talk = load(Traffic.given(2, 10, 3000), ROOFLINE, 2**33, max_length=4096)
    # 1,509 tokens of 524,288 bytes at 1 TB/s: 1,264 tokens/s at the most.
    assert talk.overloaded.startswith("overloaded: 5,998 tokens/s to decode, where the ceiling")
    assert talk.ceiling == pytest.approx(1e12 / (1509 * 524_288), rel=0.05)
    assert all(policy.use is None for policy in talk.policies)
    assert all(policy.largest_rate < 2 for policy in talk.policies)


def test_nothing_fits_without_memory():
    result = load(Traffic.given(1, 100, 100), ROOFLINE, 0, max_length=4096)
    assert result.mean_batch > 0
    assert [policy.largest_rate for policy in result.policies] == [0.0] * 4
    assert not any(policy.fits_mean for policy in result.policies)


def test_outputs_of_one_token_never_decode():
    steady = Roofline(STEADY, KVLayout.of(STEADY, "fp16"), CARD)
    result = load(Traffic.given(2.0, 50, 1), steady, 2**20, max_length=100)
    assert result.stay_seconds == result.prefill_seconds
    assert result.held_tokens == 50
    assert load(Traffic.given(10**6, 50, 1), steady, 2**20, max_length=100).overloaded


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Traffic.given(0, 1, 1), "rate 0: give requests per second"),
        (lambda: Traffic.given(1, 0, 1), "at least 1 token"),
        (lambda: Traffic(1.0, ()), "without lengths"),
        (lambda: Traffic.measured([(1.0, 1, 1)]), "a trace of 1 requests within 0.0 s"),
        (lambda: Traffic.measured([]), "a trace of 0 requests"),
        (lambda: Traffic.given(1e308, 1, 1), "rate 1e\\+308: .* at most 1,000,000,000"),
        (lambda: Stay(Traffic.given(1, 1, 1), ROOFLINE, 0.0), "efficiency 0.0"),
        (lambda: Stay(Traffic.given(1, 1, 1), ROOFLINE, 1e-308), "efficiency 1e-308"),
        (
            lambda: load(Traffic.given(1, 4000, 97), ROOFLINE, 1, max_length=4096),
            "longest request has 4,097 tokens, more than max_length 4,096",
        ),
    ],
)
def test_impossible_traffic_is_named(make, reason):
    with pytest.raises(KvhouseError, match=reason):
        make()
