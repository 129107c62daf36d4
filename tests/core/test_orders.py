"""Who goes first: orders and prefill-first, under pressure and without."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvhouse.core.queue import ORDERS
from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.core.step import Sampled, StepResult
from kvhouse.errors import KvhouseError, RequestRejected


def step(scheduler):
    """One step; the requests that it finished, by id."""
    plan = scheduler.schedule()
    sampled = tuple(Sampled(row.request) for row in plan.rows if row.samples)
    return plan, [request.id for request in scheduler.apply(plan, StepResult(1.0, sampled))]


def finished_in_order(scheduler):
    ended = []
    while scheduler.has_work:
        ended += step(scheduler)[1]
    return ended


def test_one_at_a_time_they_end_as_their_order_says(make_scheduler):
    lengths = [(5, 3), (9, 2), (2, 2), (5, 3), (1, 9)]
    priorities = [2, 1, 1, 0, 3]
    expected = {
        "fcfs": [0, 1, 2, 3, 4],
        "priority": [3, 1, 2, 0, 4],
        "shortest": [2, 0, 3, 4, 1],  # of 4, 8, 8, 10 and 11 tokens
    }
    assert set(expected) == set(ORDERS)
    for order, ended in expected.items():
        scheduler = make_scheduler(order=order, max_running=1)
        for (prompt, new), priority in zip(lengths, priorities, strict=True):
            scheduler.submit(prompt, new, priority=priority)
        assert finished_in_order(scheduler) == ended


def test_the_first_in_order_keeps_its_memory_when_the_pool_runs_dry(make_scheduler):
    scheduler = make_scheduler(order="priority", blocks=4, block_size=4)
    low = scheduler.submit(7, 6, priority=1)
    high = scheduler.submit(7, 6, priority=0)
    assert finished_in_order(scheduler) == [high.id, low.id]
    assert (high.preemptions, low.preemptions) == (0, 1)


def test_decoding_waits_for_prompts_when_prefill_goes_first(make_scheduler):
    scheduler = make_scheduler(prefill_first=True, token_budget=4)
    scheduler.submit(3, 3)
    step(scheduler)
    scheduler.submit(6, 2)
    rows = []
    while scheduler.has_work:
        plan, _ = step(scheduler)
        rows.append([(row.request, row.first, row.count) for row in plan.rows])
    assert rows == [
        [(1, 0, 4)],
        [(1, 4, 2)],
        [(0, 3, 1), (1, 6, 1)],
        [(0, 4, 1)],
    ]


def test_mixed_steps_decode_first_and_prefill_with_what_is_left(make_scheduler):
    scheduler = make_scheduler(token_budget=4)
    scheduler.submit(3, 3)
    step(scheduler)
    scheduler.submit(6, 2)
    plan, _ = step(scheduler)
    assert [(row.request, row.first, row.count) for row in plan.rows] == [(0, 3, 1), (1, 0, 3)]


requests = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=10
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it only makes new ones
@given(
    requests=requests,
    order=st.sampled_from(sorted(ORDERS)),
    prefill_first=st.booleans(),
    blocks=st.integers(2, 20),
    token_budget=st.integers(1, 30),
    gap=st.integers(0, 3),
)
def test_everyone_finishes_in_every_order(
    make_scheduler, requests, order, prefill_first, blocks, token_budget, gap
):
    scheduler = make_scheduler(
        order=order, prefill_first=prefill_first, blocks=blocks, token_budget=token_budget
    )
    taken = []
    for prompt, new, priority in requests:
        try:
            taken.append(scheduler.submit(prompt, new, priority=priority))
        except RequestRejected:
            continue
        for _ in range(gap * scheduler.has_work):
            if scheduler.has_work:
                step(scheduler)
    while scheduler.has_work:
        plan, _ = step(scheduler)
        assert plan.rows
    assert all(request.generated == request.max_new_tokens for request in taken)


def test_unknown_orders_are_refused():
    with pytest.raises(KvhouseError, match="unknown order 'lifo': choose one of fcfs, priority"):
        SchedulerConfig(64, order="lifo")
