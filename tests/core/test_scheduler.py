"""The scheduler's rules by example, and its invariants over generated traffic."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvhouse.core.check import check
from kvhouse.core.request import RequestState
from kvhouse.errors import KvhouseError, RequestRejected


def shape(plan):
    """The rows of a plan as ``(request, first, count, samples)``."""
    return [(row.request, row.first, row.count, row.samples) for row in plan.rows]


def test_prefill_decode_and_finish_are_one_rule(make_scheduler, answer):
    scheduler = make_scheduler(token_budget=6)
    scheduler.submit(prompt_tokens=10, max_new_tokens=3)
    shapes = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        shapes.append(shape(plan))
        finished = scheduler.apply(plan, answer(plan))
    assert shapes == [
        [(0, 0, 6, False)],
        [(0, 6, 4, True)],
        [(0, 10, 1, True)],
        [(0, 11, 1, True)],
    ]
    assert [request.state for request in finished] == [RequestState.FINISHED]


def test_decodes_go_before_the_next_prefill_chunk(make_scheduler, answer):
    scheduler = make_scheduler(token_budget=8)
    scheduler.submit(4, 5)
    scheduler.submit(10, 2)
    plans = []
    for _ in range(3):
        plans.append(scheduler.schedule())
        scheduler.apply(plans[-1], answer(plans[-1]))
    assert [shape(plan) for plan in plans] == [
        [(0, 0, 4, True), (1, 0, 4, False)],
        [(0, 4, 1, True), (1, 4, 6, True)],
        [(0, 5, 1, True), (1, 10, 1, True)],
    ]


def test_a_row_names_its_blocks_and_the_plan_what_it_seals(make_scheduler, answer):
    scheduler = make_scheduler(block_size=4)
    scheduler.submit(6, 3)
    first = scheduler.schedule()
    assert first.rows[0].tables == ((0, 1),)
    assert first.seals == (0,)
    assert first.admitted == (0,)
    scheduler.apply(first, answer(first))
    second = scheduler.schedule()
    assert second.seals == ()
    scheduler.apply(second, answer(second))
    third = scheduler.schedule()
    assert shape(third) == [(0, 7, 1, True)]
    assert third.seals == (1,)


def test_the_last_arrived_is_preempted_and_resumes_first(make_scheduler, answer):
    # Four blocks of 4: both prompts take two, and the first to grow needs a third.
    scheduler = make_scheduler(blocks=4, max_length=16)
    scheduler.submit(8, 4)
    scheduler.submit(8, 4)
    scheduler.submit(4, 1)
    plans = []
    while scheduler.has_work:
        plans.append(scheduler.schedule())
        scheduler.apply(plans[-1], answer(plans[-1]))
    assert [plan.preempted for plan in plans if plan.preempted] == [(1,)]
    assert plans[1].preempted == (1,)
    assert plans[1].admitted == ()
    resumed = next(plan for plan in plans[2:] if plan.admitted)
    assert shape(resumed)[0] == (1, 0, 9, True)  # its prompt and the token it had sampled
    assert resumed.admitted == (1, 2)


def test_the_watermark_keeps_room_for_growth_unless_nothing_runs(make_scheduler, answer):
    scheduler = make_scheduler(blocks=10, watermark=0.3, block_size=4, max_length=40)
    scheduler.submit(32, 1)  # 8 of 10 blocks, into the watermark: admitted, nothing else runs
    scheduler.submit(4, 1)
    plan = scheduler.schedule()
    assert plan.admitted == (0,)
    assert scheduler.refusal is not None
    refusal = scheduler.refusal
    assert (refusal.needed, refusal.free, refusal.held_back) == (1, 2, 3)
    scheduler.apply(plan, answer(plan))
    assert scheduler.schedule().admitted == (1,)


def test_contiguous_waits_for_a_whole_reservation(make_scheduler, answer):
    scheduler = make_scheduler("contiguous", blocks=10, block_size=4, max_length=16)
    for _ in range(3):
        scheduler.submit(3, 2)
    plan = scheduler.schedule()
    assert plan.admitted == (0, 1)
    refusal = scheduler.refusal
    assert refusal is not None
    assert (refusal.needed, refusal.free, refusal.fragmented) == (4, 2, False)
    assert [row.tables for row in plan.rows] == [((0,),), ((4,),)]
    scheduler.apply(plan, answer(plan))


def test_a_stop_ends_a_request_early(make_scheduler, answer):
    scheduler = make_scheduler()
    request = scheduler.submit(3, 10)
    plan = scheduler.schedule()
    assert scheduler.apply(plan, answer(plan, stops=frozenset({0}))) == (request,)
    assert request.generated == 1
    assert not scheduler.has_work


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_cancelling_frees_at_once(make_scheduler, answer, steps):
    scheduler = make_scheduler(token_budget=4)
    request = scheduler.submit(6, 4)
    for _ in range(steps):
        plan = scheduler.schedule()
        scheduler.apply(plan, answer(plan))
    scheduler.cancel(request)
    assert request.state is RequestState.CANCELLED
    assert scheduler.memory.free_blocks == scheduler.memory.total_blocks
    assert not scheduler.has_work
    scheduler.cancel(request)  # a second time changes nothing
    check(scheduler)


def test_a_request_cancelled_during_its_step_is_left_out(make_scheduler, answer):
    scheduler = make_scheduler()
    gone, stays = scheduler.submit(3, 4), scheduler.submit(3, 1)
    plan = scheduler.schedule()
    scheduler.cancel(gone)
    assert scheduler.apply(plan, answer(plan)) == (stays,)
    assert gone.generated == 0


@pytest.mark.parametrize(
    ("prompt", "new", "reason"),
    [
        (0, 1, "at least 1 prompt token"),
        (1, 0, "at least 1 prompt token"),
        (60, 5, "exceed the maximum length of 64 tokens"),
        # 40 slots are 10 blocks of 4 tokens x 3 layers x 2 x 2 heads x 8 x 2 B = 768 bytes.
        (31, 10, "need 7,680 bytes of KV (10 blocks, paged), the pool has 3,072 bytes (4 blocks)"),
    ],
)
def test_what_can_never_fit_is_rejected_with_the_reason(make_scheduler, prompt, new, reason):
    scheduler = make_scheduler(blocks=4)
    with pytest.raises(RequestRejected) as error:
        scheduler.submit(prompt, new)
    assert reason in str(error.value)
    assert not scheduler.has_work


def test_the_last_sampled_token_needs_no_slot(make_scheduler, answer):
    scheduler = make_scheduler(blocks=2, block_size=4)
    scheduler.submit(6, 3)  # 9 tokens, of which 8 are ever kept
    while scheduler.has_work:
        plan = scheduler.schedule()
        scheduler.apply(plan, answer(plan))


def test_steps_must_alternate_with_results(make_scheduler, answer):
    scheduler = make_scheduler()
    scheduler.submit(3, 2)
    plan = scheduler.schedule()
    with pytest.raises(RuntimeError, match="step 0 is still under way"):
        scheduler.schedule()
    result = answer(plan)
    with pytest.raises(RuntimeError, match="do not match"):
        scheduler.apply(plan, type(result)(1.0, ()))
    scheduler.apply(plan, result)
    with pytest.raises(RuntimeError, match="step 0 is not under way"):
        scheduler.apply(plan, result)


@pytest.mark.parametrize("limit", ["max_length", "token_budget", "max_running"])
def test_limits_below_one_are_refused(make_scheduler, limit):
    with pytest.raises(KvhouseError, match=f"{limit} 0: must be at least 1"):
        make_scheduler(**{limit: 0})


requests = st.tuples(st.integers(1, 30), st.integers(1, 20))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    policy=st.sampled_from(["paged", "contiguous"]),
    blocks=st.integers(1, 40),
    block_size=st.integers(1, 9),
    watermark=st.sampled_from([0.0, 0.05, 0.5]),
    budget=st.integers(1, 40),
    max_running=st.integers(1, 8),
    traffic=st.lists(st.lists(requests, max_size=3), min_size=1, max_size=12),
    data=st.data(),
)
def test_generated_traffic_keeps_every_invariant(
    make_scheduler,
    answer,
    policy,
    blocks,
    block_size,
    watermark,
    budget,
    max_running,
    traffic,
    data,
):
    scheduler = make_scheduler(
        policy, blocks, block_size, watermark, token_budget=budget, max_running=max_running
    )
    done, rejected, submitted, cancelled = [], 0, [], 0
    arrivals = list(traffic)
    while arrivals or scheduler.has_work:
        for prompt, new in arrivals.pop(0) if arrivals else ():
            try:
                submitted.append(scheduler.submit(prompt, new))
            except RequestRejected:
                rejected += 1
        oldest = min((r.id for r in submitted if r.state in ("waiting", "running")), default=None)
        plan = scheduler.schedule()
        check(scheduler)
        assert plan.tokens <= budget
        assert len(plan.rows) <= max_running
        assert oldest not in plan.preempted
        assert not (plan.preempted and plan.admitted)
        if scheduler.has_work:
            assert plan.rows[0].request == oldest  # the oldest always gets on
        stops = frozenset(r.request for r in plan.rows if data.draw(st.integers(0, 19)) == 0)
        done += scheduler.apply(plan, answer(plan, stops))
        if scheduler.running and data.draw(st.integers(0, 19)) == 0:
            scheduler.cancel(data.draw(st.sampled_from(scheduler.running)))
            cancelled += 1
    assert len(submitted) + rejected == sum(len(step) for step in traffic)
    assert len(done) + cancelled == len(submitted)
    assert scheduler.memory.free_blocks == blocks


def test_an_abandoned_step_is_computed_again(make_scheduler, answer):
    scheduler = make_scheduler(token_budget=6)
    scheduler.submit(10, 2)
    lost = scheduler.schedule()
    scheduler.abandon(lost)
    check(scheduler)
    assert scheduler.ledger().used == 0
    again = scheduler.schedule()
    assert shape(again) == shape(lost)
    assert again.admitted == ()
    with pytest.raises(RuntimeError, match="step 0 is not under way"):
        scheduler.abandon(lost)
    scheduler.apply(again, answer(again))
