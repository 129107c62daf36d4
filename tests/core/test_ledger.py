"""The ledger, worked out by hand. One token takes 3 layers x 2 x 2 heads x 8 x 2 B = 192 bytes."""

import pytest

from kvhouse.core.check import InvariantError, check


def run_steps(scheduler, answer, steps):
    for _ in range(steps):
        plan = scheduler.schedule()
        scheduler.apply(plan, answer(plan))


def test_paged_holds_only_what_is_written_and_the_tail(make_scheduler, answer):
    scheduler = make_scheduler("paged", blocks=16, block_size=4, max_length=64)
    scheduler.submit(6, 10)  # keeps 15 at most; after prefill 6 of 8 slots are written
    run_steps(scheduler, answer, 1)
    assert scheduler.ledger().to_dict() == {
        "total": 64 * 192,
        "used": 6 * 192,
        "shared": 0,
        "reserved": 2 * 192,
        "internal": 0,
        "external": 0,
        "cached": 0,
        "free": 56 * 192,
        "saved": 0,
    }


def test_a_tail_that_will_never_be_written_is_internal_fragmentation(make_scheduler, answer):
    scheduler = make_scheduler("paged", blocks=16, block_size=4)
    scheduler.submit(5, 2)  # keeps 6 at most, in 8 slots
    run_steps(scheduler, answer, 1)
    ledger = scheduler.ledger()
    assert (ledger.used, ledger.reserved, ledger.internal) == (5 * 192, 1 * 192, 2 * 192)


def test_contiguous_reserves_to_the_maximum_length(make_scheduler, answer):
    scheduler = make_scheduler("contiguous", blocks=10, block_size=4, max_length=16)
    for _ in range(3):
        scheduler.submit(3, 6)  # keeps 8 at most, of 16 slots reserved
    run_steps(scheduler, answer, 2)
    assert scheduler.ledger().to_dict() == {
        "total": 40 * 192,
        "used": 2 * 4 * 192,
        "shared": 0,
        "reserved": 2 * 4 * 192,
        "internal": 2 * 8 * 192,
        "external": 0,
        "cached": 0,
        "free": 8 * 192,  # two blocks, and the third request needs four: too few, not scattered
        "saved": 0,
    }


def test_enough_free_blocks_in_runs_too_short_are_external_fragmentation(make_scheduler):
    scheduler = make_scheduler("contiguous", blocks=10, block_size=4, max_length=16)
    scheduler.memory.pool.take(3)
    scheduler.memory.pool.give_back([0, 1, 2])
    middle = scheduler.memory.pool.take(5)
    scheduler.memory.pool.give_back(middle[:3])  # free are 0 to 2 and 5 to 9; 3 and 4 are held
    assert scheduler.memory.pool.free_runs() == [(0, 3), (5, 5)]
    scheduler.memory.pool.take(4)  # leaves 0 to 2 and 9: four blocks, but no four in a row
    scheduler.submit(3, 6)
    assert scheduler.schedule().admitted == ()
    assert scheduler.refusal is not None
    assert scheduler.refusal.fragmented
    ledger = scheduler.ledger()
    assert (ledger.external, ledger.free) == (4 * 4 * 192, 0)


def test_tokens_of_the_step_under_way_count_as_used(make_scheduler):
    scheduler = make_scheduler(token_budget=4)
    scheduler.submit(10, 3)
    scheduler.schedule()
    assert scheduler.ledger().used == 4 * 192


def break_table(scheduler):
    first, second = (scheduler.memory.holding(request).tables[0] for request in (0, 1))
    first.ids.append(second.ids[0])


def break_order(scheduler):
    scheduler.running.reverse()


def break_computed(scheduler):
    scheduler.running[0].computed += 1000


def lose_a_block(scheduler):
    scheduler.memory.pool.take(1)


@pytest.mark.parametrize("damage", [break_table, break_order, break_computed, lose_a_block])
def test_the_check_finds_damage(make_scheduler, answer, damage):
    scheduler = make_scheduler(blocks=16)
    scheduler.submit(5, 4)
    scheduler.submit(5, 4)
    run_steps(scheduler, answer, 1)
    check(scheduler)
    damage(scheduler)
    with pytest.raises(InvariantError):
        check(scheduler)
