"""Tiers below the pool, held against an executor that copies texts from place to place.

As in ``test_sharing``, every place of every block remembers the whole text up to the token that
was written there. Stores, loads and moves copy blocks; those that fail leave rubbish behind. Every
row then finds each token that its layers need where its table says.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.check import check
from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.core.step import Transfer
from kvhouse.errors import RequestRejected

KINDS = ("chunk", "full", "window")

prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=8)


@settings(max_examples=150)
@given(
    prompts=prompts,
    news=st.lists(st.integers(1, 8), min_size=8, max_size=8),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
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
    tiered,
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
    layout = tiered.layout_of(*(tiered.kinds[kind] for kind in kinds), block_size=block_size)
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
        tiers=tiered.configs(layout, *tiers),
        pays=lambda *_: chance.random() < 0.8,
    )
    config = SchedulerConfig(32, token_budget, 4, order, prefill_first, checked=True)
    house = tiered.House(memory, config, fails=lambda _: chance.random() < failing)
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


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("write", ["back", "through"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_pool_and_the_smallest_tiers_finish_everything(tiered, kind, write, fails):
    layout = tiered.layout_of(tiered.kinds[kind], block_size=2)
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
        tiers=tiered.configs(layout, (1, "arc", write), (2, "lru", "back")),
    )
    house = tiered.House(
        memory, config, fails=lambda transfer: fails and isinstance(transfer, Transfer)
    )
    for number, (prompt, new) in enumerate(lengths):
        house.submit([number % 3] * prompt, new, keyed=number % 2 > 0)
    house.run()
    assert all(request.state == "finished" for request in house.requests.values())
    assert sum(request.generated for request in house.requests.values()) == sum(
        new for _, new in lengths
    )
