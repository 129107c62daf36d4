"""Sending a load, on virtual time: who is sent when, and what the figures make of it."""

from __future__ import annotations

import heapq
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.bench.load import MOST_RETRY_AFTER, send
from kvhouse.bench.records import LoadRecord
from kvhouse.bench.results import Failures, summarise, under_way
from kvhouse.bench.target import Failed, Usage
from kvhouse.errors import KvhouseError
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.trace_request import TraceRequest


def near(seconds):
    return pytest.approx(seconds, abs=1e-6)


def requests_at(*arrivals, prompt=5, output=3):
    return [TraceRequest(arrival, prompt, output) for arrival in arrivals]


def test_an_open_loop_sends_at_the_arrival_times_however_slow_the_target_is(virtually, fake_target):
    target = fake_target(lambda _: ([10.0, 1.0, 2.0], Usage(5, 3)))
    sent = virtually(send(target, requests_at(7.0, 7.5, 7.5, 9.0)))
    records = sent.records
    assert [record.index for record in records] == [0, 1, 2, 3]
    assert [record.arrival for record in records] == near([0.0, 0.5, 0.5, 2.0])
    assert [record.sent for record in records] == near([0.0, 0.5, 0.5, 2.0])
    assert [record.first_token for record in records] == near([10.0, 10.5, 10.5, 12.0])
    assert [record.ended for record in records] == near([13.0, 13.5, 13.5, 15.0])
    assert list(records[0].gaps) == near([1.0, 2.0])
    assert sent.seconds == near(15.0)
    assert [len(ask.prompt) for ask in target.asked] == [5] * 4
    assert all(0 <= token < 50 for ask in target.asked for token in ask.prompt)


def test_a_closed_loop_keeps_so_many_under_way(virtually, fake_target):
    target = fake_target(lambda number: ([1.0 + number, 1.0], None))
    sent = virtually(send(target, requests_at(0.0, 90.0, 91.0, 92.0, 93.0), concurrency=2))
    # Takes 2, 3, 4, 5 and 6 seconds: the senders are free at 2, 3, 6, 8.
    assert [record.sent for record in sent.records] == near([0.0, 0.0, 2.0, 3.0, 6.0])
    assert [record.arrival for record in sent.records] == [record.sent for record in sent.records]
    assert [record.ended for record in sent.records] == near([2.0, 3.0, 6.0, 8.0, 12.0])
    level = under_way(sent.records, sent.seconds)
    assert level.peak == 2
    assert level.mean == near((2 + 3 + 4 + 5 + 6) / 12)


@given(
    gaps=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    first=st.lists(st.integers(1, 60), min_size=12, max_size=12),
    senders=st.none() | st.integers(1, 4),
)
def test_times_are_those_of_a_naive_queue(virtually, fake_target, gaps, first, senders):
    arrivals = np.cumsum(gaps) / 8
    target = fake_target(lambda number: ([first[number] / 8, 0.25], None))
    sent = virtually(send(target, requests_at(*arrivals), concurrency=senders))
    if senders is None:
        begins = list(arrivals - arrivals[0])
    else:
        free, begins = [0.0] * senders, []
        for index in range(len(gaps)):
            begins.append(heapq.heappop(free))
            heapq.heappush(free, begins[-1] + first[index] / 8 + 0.25)
    assert [record.sent for record in sent.records] == near(begins)
    ends = [begin + first[index] / 8 + 0.25 for index, begin in enumerate(begins)]
    assert [record.ended for record in sent.records] == near(ends)
    # The level, second by second of an eighth, against the records' own spans.
    level = under_way(sent.records, sent.seconds)
    assert level.mean == near(sum(e - b for b, e in zip(begins, ends, strict=True)) / max(ends))


def test_failures_are_told_apart_and_leave_the_figures_of_the_rest(virtually, fake_target):
    ends = {
        1: Failed("http_429", "too many", 3.0),
        2: Failed("cut", "gone"),
        4: Failed("http_429", "too many still", None),
    }
    target = fake_target(lambda n: ([0.5, 0.5] if n not in ends else [], ends.get(n, Usage(9, 2))))
    requests = requests_at(*range(6), output=2)
    sent = virtually(send(target, requests))
    slo = SLO(first_token=0.6)
    result = summarise(sent, {"target": "t", "model": "m"}, trace="x", requests=6, slo=slo)
    assert result.errors == (Failures("http_429", 2, "too many"), Failures("cut", 1, "gone"))
    assert (result.submitted, result.finished, result.failed, result.unfinished) == (6, 3, 3, 0)
    assert not result.partial
    assert result.prompt_tokens == 27
    assert result.output_tokens == 6
    assert result.makespan_seconds == near(6.0)
    assert result.output_tokens_per_second == near(1.0)
    assert result.first_token_seconds.mean == near(0.5)
    assert result.per_token_seconds.max == near(0.5)
    assert result.latency_seconds.p99 == near(1.0)
    assert (result.goodput.requests, result.goodput.share) == (3, 0.5)
    assert result.token_counts == "usage"
    assert result.lag_seconds.max == near(0.0)


def test_a_refused_sender_waits_as_long_as_it_was_told(virtually, fake_target):
    told = {0: 4.0, 1: 1e6, 2: None}
    target = fake_target(
        lambda n: ([], Failed("http_429", "busy", told[n])) if n in told else ([1.0], None)
    )
    sent = virtually(send(target, requests_at(*[0.0] * 4), concurrency=1))
    waited = [4.0, 4.0 + MOST_RETRY_AFTER, 4.0 + MOST_RETRY_AFTER]
    assert [record.sent for record in sent.records] == near([0.0, *waited])


def test_what_takes_too_long_is_given_up_and_ended_on_the_other_side(virtually, fake_target):
    target = fake_target(lambda number: ([1.0, 50.0 * (number == 0)], None))
    sent = virtually(send(target, requests_at(0.0, 0.0), timeout=5.0))
    assert [record.error for record in sent.records] == ["timeout", None]
    assert sent.records[0].ended == near(5.0)
    assert sorted(target.closed) == [0, 1]


def test_an_answer_without_a_token_is_none(virtually, fake_target):
    sent = virtually(send(fake_target(lambda _: ([], Usage(5, 0))), requests_at(0.0)))
    assert sent.records[0].error == "malformed"


def test_who_counted_is_said(virtually, fake_target):
    target = fake_target(lambda n: ([1.0] * 3, Usage(5, 2, 4) if n == 0 else None))
    sent = virtually(send(target, requests_at(0.0, 0.0)))
    result = summarise(sent, target.about, trace="x", requests=2)
    assert result.token_counts == "mixed"
    assert result.output_tokens == 2 + 3
    assert result.cached_tokens == 4
    assert result.shorter == 1
    assert result.goodput is None


def test_a_stop_leaves_what_was_measured_marked_partial(virtually, fake_target):
    stop = Stop()
    target = fake_target(lambda number: ([1.0, 1.0 + 100 * (number > 1)], None))
    ended = []

    def on_ended(record: LoadRecord) -> None:
        ended.append(record.index)
        stop.asked = len(ended) == 2

    sent = virtually(send(target, requests_at(0.0, 0.0, 0.0, 900.0), on_ended=on_ended, stop=stop))
    assert stop.cut_short
    assert sorted(ended) == [0, 1]
    assert sorted(target.closed) == [0, 1, 2]
    result = summarise(sent, target.about, trace="x", requests=4)
    assert result.partial
    counts = (result.submitted, result.finished, result.failed, result.unfinished)
    assert counts == (3, 2, 0, 1)
    assert result.makespan_seconds == near(2.0)
    assert result.to_dict()["partial"] is True


def test_a_load_of_which_nothing_ended_has_no_figures(virtually, fake_target):
    stop = Stop(asked=True)
    target = fake_target(lambda _: ([9.0], None))
    sent = virtually(send(target, requests_at(0.0), stop=stop))
    result = summarise(sent, target.about, trace="x", requests=1)
    assert (result.submitted, result.requests, result.partial) == (0, 1, True)
    assert result.first_token_seconds is None
    assert result.output_tokens_per_second == 0.0


def test_prompts_begin_alike_where_the_trace_says_so(virtually, fake_target):
    requests = [
        TraceRequest(0.0, 8, 1, prefix_id="a", prefix_tokens=6),
        TraceRequest(0.0, 9, 1, prefix_id="a", prefix_tokens=6),
        TraceRequest(0.0, 9, 1, prefix_id="b", prefix_tokens=6),
    ]
    target = fake_target(lambda _: ([1.0], None))
    virtually(send(target, requests))
    first, second, third = (ask.prompt for ask in target.asked)
    assert first[:6] == second[:6] != third[:6]
    assert Counter(map(len, (first, second, third))) == {8: 1, 9: 2}


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"timeout": 0.0}, {"timeout": float("nan")}])
def test_options_out_of_range_are_refused(virtually, fake_target, wrong):
    with pytest.raises(KvhouseError, match="--"):
        virtually(send(fake_target(lambda _: ([1.0], None)), requests_at(0.0), **wrong))
