"""The drive loop: its clock, its callbacks, and that step times do not touch the plans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Sampled, StepResult
from kvhouse.layout import KVLayout
from kvhouse.replayer.arrivals import SteppedArrivals, TimedArrivals, backlog
from kvhouse.replayer.drive import drive
from kvhouse.replayer.traces import TraceRequest
from kvhouse.spec.model import FullAttention, ModelSpec

SPEC = ModelSpec("toy", "Toy", (FullAttention(1, 1, 1, 1),), 1, 10, 64, 100, 50, "float32")
LAYOUT = KVLayout.of(SPEC, "fp32", 2)


class Clockwork:
    """Takes the given seconds for each step, the last of them from then on."""

    timing = "measured"

    def __init__(self, *seconds, stop_at=None):
        self.seconds, self.steps, self.stop_at = seconds, 0, stop_at

    def execute(self, plan):
        seconds = self.seconds[min(self.steps, len(self.seconds) - 1)]
        self.steps += 1
        stop = self.steps == self.stop_at
        return StepResult(seconds, tuple(Sampled(r.request, stop) for r in plan.rows if r.samples))


def scheduler(blocks=16, **limits):
    config = SchedulerConfig(**{"max_length": 32, "checked": True, **limits})
    return Scheduler(make_memory("paged", LAYOUT, blocks, 32, 0.0), config)


def test_times_by_hand():
    """Two requests, steps of 1, 2, 4 and then 8 s; the second arrives during the first step."""
    requests = [TraceRequest(0.0, 3, 3), TraceRequest(0.5, 2, 2)]
    log = drive(scheduler(), Clockwork(1.0, 2.0, 4.0, 8.0), TimedArrivals(requests))
    first, second = log.requests
    assert (first.arrival, first.admitted, first.first_token, first.finished) == (0, 0, 1, 7)
    assert (second.arrival, second.admitted, second.first_token, second.finished) == (0.5, 1, 3, 7)
    assert [i.seconds for i in log.intervals] == [1, 2, 4]
    assert [i.start for i in log.intervals] == [0, 1, 3]
    assert [i.running for i in log.intervals] == [1, 2, 2]
    assert [i.tokens for i in log.intervals] == [3, 3, 2]
    assert log.timing == "measured"


def test_an_idle_gap_is_jumped_over_and_logged():
    requests = [TraceRequest(1.0, 1, 1), TraceRequest(100.0, 1, 1)]
    log = drive(scheduler(), Clockwork(2.0), TimedArrivals(requests))
    assert [(i.start, i.seconds, i.step) for i in log.intervals] == [
        (0.0, 1.0, None),
        (1.0, 2.0, 0),
        (3.0, 97.0, None),
        (100.0, 2.0, 1),
    ]
    for interval in log.intervals:
        assert interval.running == (interval.step is not None)
        assert interval.step is not None or interval.ledger.free == interval.ledger.total


def test_a_gap_between_steps_is_jumped_over_without_time():
    arrivals = SteppedArrivals([(1000, TraceRequest(5.0, 1, 1)), (0, TraceRequest(7.0, 1, 2))])
    log = drive(scheduler(), Clockwork(2.0), arrivals)
    assert [(r.arrival, r.finished) for r in log.requests] == [(0.0, 4.0), (4.0, 6.0)]
    assert [i.step for i in log.intervals] == [0, 1, 2]


def test_a_request_arrives_at_its_step_not_before():
    arrivals = SteppedArrivals([(0, TraceRequest(0.0, 1, 5)), (3, TraceRequest(0.0, 1, 1))])
    log = drive(scheduler(), Clockwork(1.0), arrivals)
    assert log.requests[1].admitted == 3.0


def test_a_backlog_waits_from_the_start():
    log = drive(scheduler(), Clockwork(1.0), backlog([TraceRequest(9.0, 2, 1)] * 3))
    assert [r.arrival for r in log.requests] == [0.0] * 3
    assert len(log.intervals) == 1


def test_rejections_are_recorded_and_the_rest_goes_on():
    requests = [TraceRequest(0.0, 40, 1), TraceRequest(0.0, 2, 2), TraceRequest(0.0, 30, 2)]
    submitted, ended = [], []
    log = drive(
        scheduler(blocks=4),
        Clockwork(1.0),
        backlog(requests),
        on_submitted=lambda request, asked: submitted.append((request.id, asked)),
        on_ended=ended.append,
    )
    assert submitted == [(0, requests[1])]
    assert "maximum length of 32 tokens" in log.requests[0].rejection
    assert "124 bytes" not in log.requests[2].rejection
    assert "the pool has 64 bytes" in log.requests[2].rejection  # 4 blocks of 2 tokens of 8 B
    assert log.requests[1].finished == 2.0
    assert [record.index for record in ended] == [0, 2, 1]


def test_a_stop_ends_a_request_early():
    log = drive(scheduler(), Clockwork(1.0, stop_at=2), backlog([TraceRequest(0.0, 2, 9)]))
    assert (log.requests[0].generated, log.requests[0].finished) == (2, 2.0)


def test_nothing_arrives():
    log = drive(scheduler(), Clockwork(1.0), backlog([]))
    assert (log.requests, log.intervals) == ([], [])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_passes_through(error):
    class Interrupted(Clockwork):
        def execute(self, plan):
            if self.steps == 2:
                raise error
            return super().execute(plan)

    with pytest.raises(error):
        drive(scheduler(), Interrupted(1.0), backlog([TraceRequest(0.0, 2, 9)]))


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 12), st.integers(1, 12)),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.floats(0.0, 10.0), min_size=1, max_size=5),
    st.integers(12, 20),
)
def test_with_arrivals_by_step_the_plans_do_not_depend_on_time(requests, seconds, blocks):
    def plans(executor):
        arrivals = SteppedArrivals((step, TraceRequest(0.0, p, out)) for step, p, out in requests)
        plans = []
        drive(scheduler(blocks, token_budget=8), executor, arrivals, on_plan=plans.append)
        return [plan.encode() for plan in plans]

    assert plans(Clockwork(1.0)) == plans(Clockwork(*seconds))
