"""The log of events: by hand, and against the records of the same drive."""

import json

from hypothesis import given
from hypothesis import strategies as st

from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Sampled, StepResult
from kvhouse.layout import KVLayout
from kvhouse.replayer.arrivals import TimedArrivals, backlog
from kvhouse.replayer.drive import drive
from kvhouse.replayer.summary import summarise
from kvhouse.replayer.traces import TraceRequest
from kvhouse.spec.model import FullAttention, ModelSpec

SPEC = ModelSpec("toy", "Toy", (FullAttention(1, 1, 1, 1),), 1, 10, 64, 100, 50, "float32")
LAYOUT = KVLayout.of(SPEC, "fp32", 2)


class Seconds:
    """Takes one second for each step."""

    timing = "modelled"

    def execute(self, plan):
        return StepResult(1.0, tuple(Sampled(r.request) for r in plan.rows if r.samples))


def driven(policy, blocks, arrivals, watermark=0.0, **limits):
    memory = make_memory(policy, LAYOUT, blocks, 32, watermark)
    config = SchedulerConfig(**{"max_length": 32, "checked": True, **limits})
    events = []
    log = drive(Scheduler(memory, config), Seconds(), arrivals, on_event=events.append)
    return summarise(log, memory), log, [json.loads(event.encode()) for event in events]


def lines(events, *names):
    return [tuple(event[name] for name in names) for event in events]


def test_a_life_by_hand():
    """Two requests and one that never fits; the second arrives during the first step."""
    arrivals = [TraceRequest(0.0, 3, 2), TraceRequest(0.5, 2, 1), TraceRequest(0.5, 40, 1)]
    _, _, events = driven("paged", 8, TimedArrivals(arrivals))
    assert lines(events, "event", "step", "time", "request") == [
        ("arrival", 0, 0.0, 0),
        ("admitted", 0, 0.0, 0),
        ("first_token", 0, 1.0, 0),
        ("arrival", 1, 0.5, 1),
        ("arrival", 1, 0.5, 2),
        ("rejected", 1, 0.5, 2),
        ("admitted", 1, 1.0, 1),
        ("first_token", 1, 2.0, 1),
        ("finished", 1, 2.0, 0),
        ("finished", 1, 2.0, 1),
    ]
    assert (events[0]["prompt_tokens"], events[0]["max_new_tokens"]) == (3, 2)
    assert "maximum length of 32 tokens" in events[5]["reason"]
    assert (events[8]["generated_tokens"], events[8]["preemptions"]) == (2, 0)
    assert events[1]["found_tokens"] == 0


def test_memory_is_free_yet_it_does_not_fit():
    """Of 8 blocks the first and the third of four requests of 2 free theirs early; 4 are asked."""
    requests = [(3, 1), (2, 2), (3, 1), (2, 2), (4, 4)]
    result, _, events = driven(
        "contiguous-oracle", 8, backlog([TraceRequest(0.0, p, n) for p, n in requests])
    )
    refused = [event for event in events if event["event"] == "refused"]
    assert lines(refused, "step", "request", "reason", "needed_blocks", "free_blocks") == [
        (0, 4, "full", 4, 0),
        (1, 4, "fragmented", 4, 4),
    ]
    assert refused[1]["message"] == (
        "memory is free, yet it does not fit: 4 blocks in one run are needed, 4 are free in pieces"
    )
    assert (result.refusals.full, result.refusals.fragmented) == (1, 1)
    assert result.refusals.fragmented_seconds == 1.0


def test_the_watermark_is_named():
    requests = [TraceRequest(0.0, 4, 1), TraceRequest(0.0, 10, 1)]
    result, _, events = driven("paged", 8, backlog(requests), watermark=0.3)
    refused = [event for event in events if event["event"] == "refused"]
    names = ("reason", "needed_blocks", "free_blocks", "held_back_blocks")
    assert lines(refused, *names) == [("watermark", 5, 6, 2)]
    assert "5 blocks are needed, 6 are free, and 2 of these are held back" in refused[0]["message"]
    assert result.refusals.watermark == 1


def test_a_refusal_that_lasts_is_told_once():
    requests = [TraceRequest(0.0, 4, 12), TraceRequest(0.0, 16, 1)]
    result, _, events = driven("paged", 8, backlog(requests))
    assert result.steps > 10
    assert len([event for event in events if event["event"] == "refused"]) == 1
    assert result.refusals.full == 1


def test_a_preemption_says_what_is_lost():
    requests = [TraceRequest(0.0, 6, 8), TraceRequest(0.0, 6, 8)]
    result, _, events = driven("paged", 8, backlog(requests))
    assert result.preemptions == 1
    lost = [event["lost_tokens"] for event in events if event["event"] == "preempted"]
    assert lost == [result.recomputed_tokens] == [8]
    assert [e["request"] for e in events if e["event"] == "admitted"] == [0, 1, 1]


@given(
    st.lists(
        st.tuples(st.floats(0, 9), st.integers(1, 20), st.integers(1, 14)), min_size=1, max_size=8
    ),
    st.sampled_from(["paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle"]),
    st.integers(16, 24),
    st.integers(3, 40),
)
def test_events_agree_with_the_records(requests, policy, blocks, budget):
    arrivals = TimedArrivals([TraceRequest(*request) for request in requests])
    _, log, events = driven(policy, blocks, arrivals, token_budget=budget)
    for record in log.requests:
        mine = [event for event in events if event["request"] == record.index]
        kinds = [event["event"] for event in mine if event["event"] != "refused"]
        times = {event["event"]: event["time"] for event in reversed(mine)}
        assert times["arrival"] == record.arrival
        if record.rejection is not None:
            assert kinds == ["arrival", "rejected"]
            continue
        assert times["admitted"] == record.admitted
        assert times["first_token"] == record.first_token
        assert times["finished"] == record.finished
        assert (kinds[0], kinds[1], kinds[-1]) == ("arrival", "admitted", "finished")
        assert kinds.count("preempted") == record.preemptions == kinds.count("admitted") - 1
    assert sum(event["event"] == "refused" for event in events) == sum(log.refusals.values())
    steps = [event["step"] for event in events]
    assert steps == sorted(steps)
