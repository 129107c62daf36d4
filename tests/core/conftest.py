"""A tiny model's layout, an executor that only says yes, and one that copies texts."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kvhouse.core.check import check
from kvhouse.core.keys import TokenKeys
from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Sampled, StepPlan, StepResult
from kvhouse.core.tier import TierConfig
from kvhouse.layout import KVLayout
from kvhouse.spec.layers import ChunkedAttention, FullAttention, SlidingAttention
from kvhouse.spec.model import ModelSpec

TINY = ModelSpec(
    name="tiny",
    architecture="TinyForCausalLM",
    layers=(FullAttention(query_heads=4, kv_heads=2, key_dim=8, value_dim=8),) * 3,
    hidden_size=32,
    vocab_size=100,
    max_length=4096,
    parameters=1000,
    matmul_parameters=900,
    dtype="float32",
)


@pytest.fixture
def make_scheduler() -> Callable[..., Scheduler]:
    def make(
        policy: str = "paged",
        blocks: int = 16,
        block_size: int = 4,
        watermark: float = 0.0,
        **limits: int,
    ) -> Scheduler:
        config = SchedulerConfig(**{"max_length": 64, "checked": True, **limits})
        layout = KVLayout.of(TINY, "fp16", block_size)
        memory = make_memory(policy, layout, blocks, config.max_length, watermark)
        return Scheduler(memory, config)

    return make


@pytest.fixture(scope="session")
def answer() -> Callable[..., StepResult]:
    """The result of a step in which the requests in ``stops`` sampled a stop token."""

    def result(plan: StepPlan, stops: frozenset[int] = frozenset()) -> StepResult:
        rows = [row for row in plan.rows if row.samples]
        return StepResult(1.0, tuple(Sampled(row.request, row.request in stops) for row in rows))

    return result


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

    Every place of every block remembers the whole text up to the token that was written there.
    Stores, loads and moves copy blocks; those that fail leave rubbish behind. Every row finds each
    token that its layers need where its table says, or an assertion fails.

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

    def serve(self, text, new=1, **options):
        request = self.submit(text, new, **options)
        self.run()
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


def house_of(blocks, *tiers, share=True, fails=lambda _: False, budget=64, **options):
    layout = layout_of(KINDS["full"])
    memory = make_memory(
        "paged", layout, blocks, 64, 0.0, share=share, tiers=configs(layout, *tiers), **options
    )
    return House(memory, SchedulerConfig(64, budget, checked=True), fails)


@pytest.fixture(scope="session")
def tiered():
    """What tests of tiers are made with."""
    return SimpleNamespace(
        kinds=KINDS, layout_of=layout_of, configs=configs, House=House, house_of=house_of
    )
