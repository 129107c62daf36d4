"""Tiers below the pool, case by case: what is stored, loaded, moved, refused and forgotten."""

import pytest

from kvhouse.core.check import check
from kvhouse.core.keys import BlockKeys
from kvhouse.core.memory import make_memory
from kvhouse.core.step import Move, Row, Sampled, StepPlan, StepResult, Transfer
from kvhouse.core.tier import TierConfig
from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.spec.layers import State, Tensor

OLD, YOUNG = list(range(100, 124)), list(range(200, 224))


class NamedByTrace(BlockKeys):
    """Keys of the prompt's four full blocks; a trace says nothing of what is generated."""

    def __init__(self, number):
        self.number = number

    def key(self, index):
        return (self.number * 10 + index, 3) if index < 4 else None


@pytest.mark.parametrize("write", ["back", "through"])
def test_what_the_pool_forgets_is_loaded_from_the_tier(tiered, write):
    house = tiered.house_of(8, (16, "lru", write))
    house.serve(OLD)
    house.serve(YOUNG)  # takes the place of most of the old
    again = house.serve(OLD)
    assert again.reused + again.loaded == 20  # the sixth block is full, but a token must be left
    assert again.loaded >= 12
    plan = house.plans[-1]
    assert [load.tier for load in plan.loads] == [0] * (again.loaded // 4)
    assert plan.tokens == 4
    assert house.tiers[0].counters.loaded == again.loaded // 4


def test_written_through_means_stored_in_the_next_step_and_once(tiered):
    house = tiered.house_of(16, (16, "lru", "through"))
    house.submit(OLD, 6)
    house.run()
    stores = [[store.block for store in plan.stores] for plan in house.plans]
    # The prompt's six blocks after its step; the seventh, full with the fourth new token's step.
    assert [len(each) for each in stores] == [0, 6, 0, 0, 0, 1]
    assert house.plans[0].seals == tuple(stores[1])
    house.serve(OLD)
    assert not any(plan.stores for plan in house.plans[6:])


def test_written_back_means_stored_when_the_block_is_taken(tiered):
    house = tiered.house_of(8, (16, "lru", "back"))
    house.serve(OLD)
    assert not any(plan.stores for plan in house.plans)
    house.serve(YOUNG)
    rows, stores = house.plans[-1].rows, house.plans[-1].stores
    # Two of eight blocks held nothing; four of the six that did are taken for the young.
    assert len(stores) == 4
    assert {store.block for store in stores} < set(rows[0].tables[0])


def test_what_the_host_gives_up_goes_one_tier_down_and_comes_back_from_there(tiered):
    house = tiered.house_of(8, (6, "lru", "back"), (100, "lru", "back"))
    texts = [list(range(base, base + 24)) for base in (100, 200, 300, 400)]
    for text in texts:
        house.serve(text)
    assert any(plan.moves for plan in house.plans)
    again = house.serve(texts[0])
    assert again.reused + again.loaded == 20
    assert {load.tier for load in house.plans[-1].loads} == {1}
    host, nvme = (tier.counters for tier in house.tiers)
    moves = sum(len(plan.moves) for plan in house.plans)
    assert host.evicted == nvme.stored == moves > 0
    assert nvme.evicted == 0


def test_nothing_is_loaded_that_does_not_pay(tiered):
    asked = []

    def pays(first, tokens, blocks):
        asked.append((first, tokens, blocks))
        return False

    house = tiered.house_of(8, (16, "lru", "back"), pays=pays)
    house.serve(OLD)
    house.serve(YOUNG)
    again = house.serve(OLD)
    assert (again.reused, again.loaded) == (8, 0)  # the head is what the pool forgets last
    assert asked == [(8, 12, (3,))]
    assert house.tiers[0].counters.declined == 3
    assert not any(plan.loads for plan in house.plans)


@pytest.mark.parametrize(
    ("paying", "asked", "loaded", "declined"),
    [
        ([], [(0, 8, (2, 0)), (0, 20, (2, 3))], 0, [2, 3]),
        ([(2, 0)], [(0, 8, (2, 0)), (8, 12, (0, 3))], 8, [0, 3]),
        ([(2, 3)], [(0, 8, (2, 0)), (0, 20, (2, 3))], 20, [0, 0]),
        ([(2, 0), (0, 3)], [(0, 8, (2, 0)), (8, 12, (0, 3))], 20, [0, 0]),
    ],
)
def test_each_tier_is_judged_by_what_it_adds(tiered, paying, asked, loaded, declined):
    heard = []

    def pays(first, tokens, blocks):
        heard.append((first, tokens, blocks))
        return blocks in paying

    house = tiered.house_of(8, (6, "lru", "back"), (100, "lru", "back"), pays=pays)
    for base in (100, 200, 300):  # then the host has the first text's head, the disk its tail
        house.serve(list(range(base, base + 24)))
    again = house.serve(OLD)
    assert heard == asked
    assert (again.reused, again.loaded) == (0, loaded)
    assert [tier.counters.declined for tier in house.tiers] == declined


def preempting(tiered, tiers, pays=None):
    """Two requests that do not fit together, without keys."""
    options = {"pays": pays} if pays else {}
    house = tiered.house_of(12, *tiers, share=False, **options)
    for base in (100, 200):
        house.submit(list(range(base, base + 17)), 20, keyed=False)
    house.run()
    return house


def test_a_tier_makes_preemption_a_swap_with_the_same_outputs(tiered):
    without, swapped = preempting(tiered, []), preempting(tiered, [(32, "lru", "back")])
    assert without.texts == swapped.texts
    assert without.requests[1].preemptions == swapped.requests[1].preemptions == 1
    computed = [sum(plan.tokens for plan in house.plans) for house in (without, swapped)]
    victim = swapped.requests[1]
    assert without.requests[1].loaded == without.requests[1].reused == 0
    assert victim.loaded > 0
    assert computed[0] - computed[1] == victim.loaded + victim.reused
    # Nobody else can ask for what they had, so nothing is left behind.
    assert not list(swapped.tiers[0])
    assert swapped.scheduler.ledger().cached == 0


def test_without_keys_nothing_is_shared_for_all_the_tiers(tiered):
    house = tiered.house_of(16, (16, "lru", "through"))
    for _ in range(2):
        assert house.serve(OLD, keyed=False).reused == 0


def test_keys_are_for_the_request_alone_where_sharing_is_off(tiered):
    house = tiered.house_of(16, (16, "lru", "through"), share=False)
    house.serve(OLD)
    again = house.submit(OLD, 1, salt="another")
    house.run()
    assert (again.reused, again.loaded) == (0, 0)


def test_generated_blocks_that_a_trace_does_not_name_are_swapped_too(tiered):
    house = tiered.house_of(12, (32, "lru", "back"))
    for number in range(2):
        text = [number] * 17
        request = house.scheduler.submit(17, 20, NamedByTrace(number))
        house.texts[request.id], house.requests[request.id] = text, request
        house.salts[request.id] = ""
    house.run()
    victim = house.requests[1]
    assert victim.preemptions == 1
    assert victim.loaded + victim.reused > 20  # more than the prompt's four full blocks
    # What the trace names stays for others, and only that.
    assert {content.key for content, _ in house.tiers[0]} <= {(i, 3) for i in range(40)}


def test_a_failed_load_voids_its_rows_and_is_a_miss(tiered):
    failing = []
    house = tiered.house_of(
        16, (16, "lru", "back"), fails=lambda t: t in failing and not failing.remove(t)
    )
    house.serve(OLD)
    house.serve(YOUNG)
    house.serve(list(range(300, 324)))
    first, second = house.submit([*OLD, 1], 2), house.submit([*OLD, 2], 2)
    other = house.submit(list(range(400, 408)), 2)
    plan = house.scheduler.schedule()
    assert [row.request for row in plan.rows] == [first.id, second.id, other.id]
    assert first.loaded > 0
    lost = plan.loads[0]
    failing.append(lost)
    slots = len(list(house.tiers[0]))
    result = house.execute(plan)
    assert result.failed_loads == (lost.block,)
    assert plan.void(result.failed_loads) == {first.id, second.id}
    house.scheduler.apply(plan, result)
    for request in (first, second):
        assert request.state == "waiting"
        assert (request.computed, request.generated, request.setbacks) == (0, 0, 1)
        assert (request.reused, request.loaded, request.preemptions) == (0, 0, 0)
    assert (other.state, other.generated) == ("running", 1)
    assert len(list(house.tiers[0])) == slots - 1
    assert house.tiers[0].counters.failed == 1
    house.run()
    assert first.generated == second.generated == 2
    assert first.setbacks == 1


def test_a_failed_store_loses_nothing(tiered):
    house = tiered.house_of(8, (16, "lru", "back"), fails=lambda t: t.block % 2)
    house.serve(OLD)
    house.serve(YOUNG)
    stores = house.plans[-1].stores
    good = [store for store in stores if not store.block % 2]
    assert len(list(house.tiers[0])) == len(good) < len(stores)
    assert house.tiers[0].counters.failed == len(stores) - len(good)
    assert house.serve(OLD).generated == 1


def test_what_a_plan_reads_and_writes_stays_until_it_is_applied(tiered):
    house = tiered.house_of(8, (4, "lru", "back"))
    house.serve(OLD)
    house.serve(YOUNG)
    house.submit(OLD, 1)
    plan = house.scheduler.schedule()
    tier = house.tiers[0]
    assert tier.pinned == len(plan.loads) + len(plan.stores) > 0
    for content, slot in tier:
        arriving = slot in {store.slot for store in plan.stores}
        assert tier.find(content) == (None if arriving else slot)
    house.scheduler.apply(plan, house.execute(plan))
    assert tier.pinned == 0


def test_an_interrupted_step_loses_its_transfers_and_no_request(tiered):
    house = tiered.house_of(8, (16, "lru", "back"))
    house.serve(OLD)
    house.serve(YOUNG)
    again = house.submit(OLD, 1)
    plan = house.scheduler.schedule()
    assert plan.loads
    house.scheduler.abandon(plan)
    check(house.scheduler)
    assert again.state == "waiting"
    assert house.tiers[0].counters.failed == len(plan.loads) + len(plan.stores)
    house.run()
    assert again.generated == 1


def test_failures_that_were_not_planned_are_refused(tiered):
    house = tiered.house_of(8, (16, "lru", "back"))
    house.submit(OLD, 1)
    plan = house.scheduler.schedule()
    for failed, what in (
        ({"failed_loads": (0,)}, "loads"),
        ({"failed_stores": (Transfer(0, 0, 0),)}, "stores"),
        ({"failed_moves": (Move(0, 0, 0),)}, "moves"),
    ):
        with pytest.raises(RuntimeError, match=f"{what} failed that were not planned"):
            house.scheduler.apply(plan, StepResult(1.0, (Sampled(0),), **failed))
    house.scheduler.apply(plan, house.execute(plan))


def test_a_plan_without_transfers_is_written_as_ever():
    row = Row(0, 0, 1, True, ((3,),))
    line = (
        b'{"index":1,"rows":[{"request":0,"first":0,"count":1,"samples":true,"tables":[[3]],'
        b'"starts":[0],"slot":null}],"seals":[],"admitted":[0],"preempted":[]'
    )
    plan = StepPlan(1, (row,), (), (0,), ())
    assert plan.encode() == line + b"}\n"
    plan = StepPlan(1, (row,), (), (0,), (), loads=(Transfer(0, 5, 3),), moves=(Move(0, 2, 7),))
    loads = b',"loads":[{"tier":0,"slot":5,"block":3}]'
    assert plan.encode() == line + loads + b',"moves":[{"tier":0,"slot":2,"into":7}]}\n'


@pytest.mark.parametrize("policy", ["contiguous-max", "contiguous-pow2", "contiguous-oracle"])
def test_contiguous_memory_has_no_tiers(tiered, policy):
    layout = tiered.layout_of(tiered.kinds["full"])
    with pytest.raises(KvhouseError, match="only paged memory can have tiers below it, since"):
        make_memory(policy, layout, 16, 64, tiers=tiered.configs(layout, (4, "lru", "back")))


def test_states_have_no_tiers(tiered):
    layout = tiered.layout_of(tiered.kinds["full"], State((Tensor(8),)))
    size = layout.pool_in(10**5, 10)
    with pytest.raises(UnsupportedModel, match=r"blocks .* taken up again from a tier: its state"):
        make_memory("paged", layout, size, 64, tiers=tiered.configs(layout, (4, "lru", "back")))


def test_impossible_tiers_are_refused(tiered):
    layout = tiered.layout_of(tiered.kinds["full"])
    with pytest.raises(KvhouseError, match="tier host: 63 bytes hold no block of 64 bytes"):
        make_memory("paged", layout, 16, 64, tiers=[TierConfig("host", 63)])
    with pytest.raises(KvhouseError, match="tier host: unknown replacement 'fifo': choose one of"):
        TierConfig("host", 64, "fifo")
    with pytest.raises(KvhouseError, match="unknown write 'around': choose one of through, back"):
        TierConfig("host", 64, "lru", "around")
    below = tiered.configs(layout, (4, "lru", "back"), (4, "lru", "through"))
    with pytest.raises(KvhouseError, match="tier tier 1: only the first tier can be written thr"):
        make_memory("paged", layout, 16, 64, tiers=below)
