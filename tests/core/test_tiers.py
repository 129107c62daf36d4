"""Tiers below the pool, held against an executor that copies texts from place to place.

As in ``test_sharing``, every place of every block remembers the whole text up to the token that
was written there. Stores, loads and moves copy blocks; those that fail leave rubbish behind. Every
row then finds each token that its layers need where its table says.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.check import check
from kvhouse.core.keys import PrefixIdKeys, TokenKeys
from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Move, Row, Sampled, StepPlan, StepResult, Transfer
from kvhouse.core.tier import TierConfig
from kvhouse.errors import KvhouseError, RequestRejected, UnsupportedModel
from kvhouse.layout import KVLayout
from kvhouse.spec.layers import ChunkedAttention, FullAttention, SlidingAttention, State, Tensor
from kvhouse.spec.model import ModelSpec

SHAPE = (2, 1, 4, 4)
KINDS = {
    "full": FullAttention(*SHAPE),
    "window": SlidingAttention(*SHAPE, window=5),
    "chunk": ChunkedAttention(*SHAPE, chunk=6),
}


def layout_of(*layers, block_size=4):
    spec = ModelSpec("m", "M", layers, 8, 10, 4096, 1, 1, "float16")
    return KVLayout.of(spec, "fp16", block_size)


class House:
    """A scheduler, and an executor that writes, copies and reads texts.

    Args:
        memory: The pool and its tiers.
        config: The scheduler's limits.
        fails: Called for each transfer; whether it fails.
    """

    def __init__(self, memory, config, fails=lambda _: False):
        self.scheduler, self.fails = Scheduler(memory, config), fails
        self.layout = memory.layout
        self.blocks, self.slots = {}, {}
        self.texts, self.salts, self.requests, self.plans = {}, {}, {}, []

    def submit(self, prompt, new, salt="", keyed=True, priority=0):
        text = list(prompt)
        keys = TokenKeys(text, self.layout.block_size, [("tenant", salt)]) if keyed else None
        request = self.scheduler.submit(len(text), new, keys, priority)
        # Without keys nothing may be shared, as if each were a tenant of its own.
        self.salts[request.id] = salt if keyed else f"{salt} {request.id}"
        self.texts[request.id], self.requests[request.id] = text, request
        return request

    def until(self, request, position):
        return self.salts[request], tuple(self.texts[request][: position + 1])

    def step(self):
        plan = self.scheduler.schedule()
        check(self.scheduler)
        self.plans.append(plan)
        self.scheduler.apply(plan, self.execute(plan))
        return plan

    def run(self, most=5000):
        while self.scheduler.has_work:
            self.step()
            assert len(self.plans) < most
        return self.plans

    def execute(self, plan):
        failed_moves, failed_stores, failed_loads = [], [], []
        for move in plan.moves:
            there = dict(self.slots[move.tier, move.slot])
            self._copy(there, self.slots, (move.tier + 1, move.into), move, failed_moves)
        for store in plan.stores:
            there = dict(self.blocks[store.block])
            self._copy(there, self.slots, (store.tier, store.slot), store, failed_stores)
        for load in plan.loads:
            there = dict(self.slots[load.tier, load.slot])
            self._copy(there, self.blocks, load.block, load, failed_loads)
        failed_loads = tuple(load.block for load in failed_loads)
        void = plan.void(failed_loads)
        sampled = []
        holders = self.holders()
        for row in plan.rows:
            if row.request in void:
                continue
            self.read(row)
            self.write(row, holders)
            if row.samples:
                text = self.texts[row.request]
                text.append(len(text) % 2)
                sampled.append(Sampled(row.request))
        return StepResult(
            1.0, tuple(sampled), failed_loads, tuple(failed_stores), tuple(failed_moves)
        )

    def _copy(self, there, places, place, transfer, failed):
        if self.fails(transfer):
            failed.append(transfer)
            there = {}
        places[place] = there

    def holders(self):
        memory = self.scheduler.memory
        return Counter(b for h in memory.holders for b in memory.holding(h).blocks())

    def write(self, row, holders):
        for number in range(len(self.layout.groups)):
            for position in range(row.first, row.first + row.count):
                block, offset = self.place(row, number, position)
                assert holders[block] == 1
                text = number, self.until(row.request, position)
                self.blocks.setdefault(block, {})[offset] = text

    def read(self, row):
        for number, group in enumerate(self.layout.groups):
            for position in range(group.reach.first(row.first), row.first):
                block, offset = self.place(row, number, position)
                assert self.blocks[block][offset] == (number, self.until(row.request, position))

    def place(self, row, number, position):
        size = self.layout.groups[number].block_size
        index = position // size - row.starts[number]
        assert 0 <= index < len(row.tables[number])
        return row.tables[number][index], position % size

    @property
    def tiers(self):
        return list(self.scheduler.memory.tiers)


def configs(layout, *tiers):
    """Tiers given as (blocks, replacement, write)."""
    return [
        TierConfig(f"tier {number}", blocks * layout.block_bytes, replacement, write)
        for number, (blocks, replacement, write) in enumerate(tiers)
    ]


prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=8)


@settings(max_examples=150)
@given(
    prompts=prompts,
    news=st.lists(st.integers(1, 8), min_size=8, max_size=8),
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    block_size=st.integers(1, 4),
    blocks=st.integers(4, 40),
    token_budget=st.integers(1, 20),
    keyed=st.lists(st.booleans(), min_size=8, max_size=8),
    share=st.booleans(),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    replacement=st.sampled_from(["lru", "arc"]),
    write=st.sampled_from(["back", "through"]),
    order=st.sampled_from(["fcfs", "priority", "shortest"]),
    prefill_first=st.booleans(),
    chance=st.randoms(use_true_random=False),
    failing=st.sampled_from([0.0, 0.3, 1.0]),
    cancels=st.sampled_from([0.0, 0.1]),
)
def test_every_token_is_where_the_table_says_whatever_was_copied_or_failed(
    prompts,
    news,
    kinds,
    block_size,
    blocks,
    token_budget,
    keyed,
    share,
    sizes,
    replacement,
    write,
    order,
    prefill_first,
    chance,
    failing,
    cancels,
):
    layout = layout_of(*(KINDS[kind] for kind in kinds), block_size=block_size)
    writes = [write] + ["back"] * (len(sizes) - 1)
    tiers = [(size, replacement, each) for size, each in zip(sizes, writes, strict=True)]
    memory = make_memory(
        "paged",
        layout,
        blocks,
        32,
        0.0,
        in_flight=token_budget,
        share=share,
        tiers=configs(layout, *tiers),
        pays=lambda *_: chance.random() < 0.8,
    )
    config = SchedulerConfig(32, token_budget, 4, order, prefill_first, checked=True)
    house = House(memory, config, fails=lambda _: chance.random() < failing)
    for number, (prompt, new) in enumerate(zip(prompts, news, strict=False)):
        try:
            salt = "" if share else str(number)
            house.submit(prompt, new, salt, keyed[number], chance.randrange(3))
        except RequestRejected:
            continue
    scheduler = house.scheduler
    interruptions = 0
    while scheduler.has_work:
        plan = scheduler.schedule()
        assert plan.index < 3000
        check(scheduler)
        assert_can_be_done(plan, memory)
        if interruptions < 10 and chance.random() < cancels:
            interruptions += 1
            if chance.random() < 0.5:  # with all its work done
                house.execute(plan)
            for row in plan.rows:
                del house.texts[row.request][house.requests[row.request].known :]
            scheduler.abandon(plan)
            check(scheduler)
            continue
        result = house.execute(plan)
        if chance.random() < cancels:
            scheduler.cancel(chance.choice(list(house.requests.values())))
        scheduler.apply(plan, result)
    for number, request in house.requests.items():
        if request.state == "finished":
            assert request.generated == request.max_new_tokens
            assert len(house.texts[number]) == request.prompt_tokens + request.max_new_tokens
        else:
            assert request.state == "cancelled"
            assert cancels
    if failing == 1.0:
        assert not any(tier.counters.stored + tier.counters.loaded for tier in house.tiers)


def assert_can_be_done(plan, memory):
    """No place of a plan is written twice in one phase, or read after it was written."""
    written = [(s.tier, s.slot) for s in plan.stores] + [(m.tier + 1, m.into) for m in plan.moves]
    assert len(set(written)) == len(written)
    loaded = [load.block for load in plan.loads]
    assert len(set(loaded)) == len(loaded)
    assert not {(load.tier, load.slot) for load in plan.loads} & set(written)
    capacities = [tier.capacity for tier in memory.tiers]
    for tier, slot in [*written, *((load.tier, load.slot) for load in plan.loads)]:
        assert 0 <= slot < capacities[tier]


def house_of(blocks, *tiers, share=True, fails=lambda _: False, budget=64, **options):
    layout = layout_of(KINDS["full"])
    memory = make_memory(
        "paged", layout, blocks, 64, 0.0, share=share, tiers=configs(layout, *tiers), **options
    )
    return House(memory, SchedulerConfig(64, budget, checked=True), fails)


def serve(house, text, new=1, **options):
    request = house.submit(text, new, **options)
    house.run()
    return request


OLD, YOUNG = list(range(100, 124)), list(range(200, 224))


@pytest.mark.parametrize("write", ["back", "through"])
def test_what_the_pool_forgets_is_loaded_from_the_tier(write):
    house = house_of(8, (16, "lru", write))
    serve(house, OLD)
    serve(house, YOUNG)  # takes the place of most of the old
    again = serve(house, OLD)
    assert again.reused + again.loaded == 20  # the sixth block is full, but a token must be left
    assert again.loaded >= 12
    plan = house.plans[-1]
    assert [load.tier for load in plan.loads] == [0] * (again.loaded // 4)
    assert plan.tokens == 4
    assert house.tiers[0].counters.loaded == again.loaded // 4


def test_written_through_means_stored_in_the_next_step_and_once():
    house = house_of(16, (16, "lru", "through"))
    house.submit(OLD, 6)
    house.run()
    stores = [[store.block for store in plan.stores] for plan in house.plans]
    # The prompt's six blocks after its step; the seventh, full with the fourth new token's step.
    assert [len(each) for each in stores] == [0, 6, 0, 0, 0, 1]
    assert house.plans[0].seals == tuple(stores[1])
    serve(house, OLD)
    assert not any(plan.stores for plan in house.plans[6:])


def test_written_back_means_stored_when_the_block_is_taken():
    house = house_of(8, (16, "lru", "back"))
    serve(house, OLD)
    assert not any(plan.stores for plan in house.plans)
    serve(house, YOUNG)
    rows, stores = house.plans[-1].rows, house.plans[-1].stores
    # Two of eight blocks held nothing; four of the six that did are taken for the young.
    assert len(stores) == 4
    assert {store.block for store in stores} < set(rows[0].tables[0])


def test_what_the_host_gives_up_goes_one_tier_down_and_comes_back_from_there():
    house = house_of(8, (6, "lru", "back"), (100, "lru", "back"))
    texts = [list(range(base, base + 24)) for base in (100, 200, 300, 400)]
    for text in texts:
        serve(house, text)
    assert any(plan.moves for plan in house.plans)
    again = serve(house, texts[0])
    assert again.reused + again.loaded == 20
    assert {load.tier for load in house.plans[-1].loads} == {1}
    host, nvme = (tier.counters for tier in house.tiers)
    moves = sum(len(plan.moves) for plan in house.plans)
    assert host.evicted == nvme.stored == moves > 0
    assert nvme.evicted == 0


def test_nothing_is_loaded_that_does_not_pay():
    asked = []

    def pays(first, tokens, blocks):
        asked.append((first, tokens, blocks))
        return False

    house = house_of(8, (16, "lru", "back"), pays=pays)
    serve(house, OLD)
    serve(house, YOUNG)
    again = serve(house, OLD)
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
def test_each_tier_is_judged_by_what_it_adds(paying, asked, loaded, declined):
    heard = []

    def pays(first, tokens, blocks):
        heard.append((first, tokens, blocks))
        return blocks in paying

    house = house_of(8, (6, "lru", "back"), (100, "lru", "back"), pays=pays)
    for base in (100, 200, 300):  # then the host has the first text's head, the disk its tail
        serve(house, list(range(base, base + 24)))
    again = serve(house, OLD)
    assert heard == asked
    assert (again.reused, again.loaded) == (0, loaded)
    assert [tier.counters.declined for tier in house.tiers] == declined


def preempting(tiers, pays=None):
    """Two requests that do not fit together, without keys."""
    options = {"pays": pays} if pays else {}
    house = house_of(12, *tiers, share=False, **options)
    for base in (100, 200):
        house.submit(list(range(base, base + 17)), 20, keyed=False)
    house.run()
    return house


def test_a_tier_makes_preemption_a_swap_with_the_same_outputs():
    without, swapped = preempting([]), preempting([(32, "lru", "back")])
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


def test_without_keys_nothing_is_shared_for_all_the_tiers():
    house = house_of(16, (16, "lru", "through"))
    for _ in range(2):
        assert serve(house, OLD, keyed=False).reused == 0


def test_keys_are_for_the_request_alone_where_sharing_is_off():
    house = house_of(16, (16, "lru", "through"), share=False)
    serve(house, OLD)
    again = house.submit(OLD, 1, salt="another")
    house.run()
    assert (again.reused, again.loaded) == (0, 0)


def test_generated_blocks_that_a_trace_does_not_name_are_swapped_too():
    house = house_of(12, (32, "lru", "back"))
    for number in range(2):
        text = [number] * 17
        keys = PrefixIdKeys([number * 10 + part for part in range(4)], 4, 4, 17)
        request = house.scheduler.submit(17, 20, keys)
        house.texts[request.id], house.requests[request.id] = text, request
        house.salts[request.id] = ""
    house.run()
    victim = house.requests[1]
    assert victim.preemptions == 1
    assert victim.loaded + victim.reused > 20  # more than the prompt's four full blocks
    # What the trace names stays for others, and only that.
    assert {content.key for content, _ in house.tiers[0]} <= {(i, 3) for i in range(40)}


def test_a_failed_load_voids_its_rows_and_is_a_miss():
    failing = []
    house = house_of(
        16, (16, "lru", "back"), fails=lambda t: t in failing and not failing.remove(t)
    )
    serve(house, OLD)
    serve(house, YOUNG)
    serve(house, list(range(300, 324)))
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


def test_a_failed_store_loses_nothing():
    house = house_of(8, (16, "lru", "back"), fails=lambda t: t.block % 2)
    serve(house, OLD)
    serve(house, YOUNG)
    stores = house.plans[-1].stores
    good = [store for store in stores if not store.block % 2]
    assert len(list(house.tiers[0])) == len(good) < len(stores)
    assert house.tiers[0].counters.failed == len(stores) - len(good)
    assert serve(house, OLD).generated == 1


def test_what_a_plan_reads_and_writes_stays_until_it_is_applied():
    house = house_of(8, (4, "lru", "back"))
    serve(house, OLD)
    serve(house, YOUNG)
    house.submit(OLD, 1)
    plan = house.scheduler.schedule()
    tier = house.tiers[0]
    assert tier.pinned == len(plan.loads) + len(plan.stores) > 0
    for content, slot in tier:
        arriving = slot in {store.slot for store in plan.stores}
        assert tier.find(content) == (None if arriving else slot)
    house.scheduler.apply(plan, house.execute(plan))
    assert tier.pinned == 0


def test_an_interrupted_step_loses_its_transfers_and_no_request():
    house = house_of(8, (16, "lru", "back"))
    serve(house, OLD)
    serve(house, YOUNG)
    again = house.submit(OLD, 1)
    plan = house.scheduler.schedule()
    assert plan.loads
    house.scheduler.abandon(plan)
    check(house.scheduler)
    assert again.state == "waiting"
    assert house.tiers[0].counters.failed == len(plan.loads) + len(plan.stores)
    house.run()
    assert again.generated == 1


def test_failures_that_were_not_planned_are_refused():
    house = house_of(8, (16, "lru", "back"))
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
def test_contiguous_memory_has_no_tiers(policy):
    layout = layout_of(KINDS["full"])
    with pytest.raises(KvhouseError, match="only paged memory can have tiers below it, since"):
        make_memory(policy, layout, 16, 64, tiers=configs(layout, (4, "lru", "back")))


def test_states_have_no_tiers():
    layout = layout_of(KINDS["full"], State((Tensor(8),)))
    size = layout.pool_in(10**5, 10)
    with pytest.raises(UnsupportedModel, match=r"blocks .* taken up again from a tier: its state"):
        make_memory("paged", layout, size, 64, tiers=configs(layout, (4, "lru", "back")))


def test_impossible_tiers_are_refused():
    layout = layout_of(KINDS["full"])
    with pytest.raises(KvhouseError, match="tier host: 63 bytes hold no block of 64 bytes"):
        make_memory("paged", layout, 16, 64, tiers=[TierConfig("host", 63)])
    with pytest.raises(KvhouseError, match="tier host: unknown replacement 'fifo': choose one of"):
        TierConfig("host", 64, "fifo")
    with pytest.raises(KvhouseError, match="unknown write 'around': choose one of through, back"):
        TierConfig("host", 64, "lru", "around")
    below = configs(layout, (4, "lru", "back"), (4, "lru", "through"))
    with pytest.raises(KvhouseError, match="tier tier 1: only the first tier can be written thr"):
        make_memory("paged", layout, 16, 64, tiers=below)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("write", ["back", "through"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_smallest_pool_and_the_smallest_tiers_finish_everything(kind, write, fails):
    layout = layout_of(KINDS[kind], block_size=2)
    config = SchedulerConfig(40, 8, 6, checked=True)
    lengths = [(3 + 7 * number % 20, 1 + 11 * number % 19) for number in range(30)]
    blocks = max(layout.blocks_for(prompt + new - 1, 8) for prompt, new in lengths)
    memory = make_memory(
        "paged",
        layout,
        blocks,
        40,
        0.3,
        in_flight=8,
        share=True,
        tiers=configs(layout, (1, "arc", write), (2, "lru", "back")),
    )
    house = House(memory, config, fails=lambda transfer: fails and isinstance(transfer, Transfer))
    for number, (prompt, new) in enumerate(lengths):
        house.submit([number % 3] * prompt, new, keyed=number % 2 > 0)
    house.run()
    assert all(request.state == "finished" for request in house.requests.values())
    assert sum(request.generated for request in house.requests.values()) == sum(
        new for _, new in lengths
    )
