"""The scheduler and its memory for every kind of layer, against cells that remember who wrote them.

Every row writes its tokens into cells addressed by its own tables, as an engine would, and then
looks up each position that its layers need. A cell that does not hold just that position of just
that request was let go too early, given twice, or named wrongly.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.check import check
from kvhouse.core.memory import make_memory
from kvhouse.core.policy import PAGED, POLICIES, Placement
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.errors import KvhouseError, RequestRejected
from kvhouse.formats import FORMATS
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.spec.layers import SlidingAttention

LONGEST = 64


class Cells:
    """What lies in the pool, by block and place, and in the slots."""

    def __init__(self, layout, naive):
        self.layout, self.naive = layout, naive
        self.cells, self.slots = {}, {}

    def carry_out(self, plan):
        self.filled = set()
        for row in plan.rows:
            self._write(row)
        assert sorted(self.filled) == sorted(plan.seals)
        for row in plan.rows:
            self._read(row)

    def _of(self, row, index, position):
        """The cell of a position; a block that the table does not name is a KeyError."""
        group = self.layout.groups[index]
        named = dict(enumerate(row.tables[index], row.starts[index]))
        return named[position // group.block_size], position % group.block_size

    def _write(self, row):
        for index, group in enumerate(self.layout.groups):
            positions = range(row.first, row.first + row.count)
            if group.reach.kind == "another":
                positions = range(group.other_tokens if row.first == 0 else 0)
            for position in positions:
                block, place = self._of(row, index, position)
                self.cells[block, place] = (row.request, index, position)
                if place == group.block_size - 1 and group.reach.kind != "another":
                    self.filled.add(block)
        if row.first == 0:
            self.slots[row.slot] = row.request

    def _read(self, row):
        for index, group in enumerate(self.layout.groups):
            needed = {
                position
                for layer in set(group.layers)
                for query in range(row.first, row.first + row.count)
                for position in self.naive.sees(layer, query, group.other_tokens)
            }
            for position in needed:
                assert self.cells[self._of(row, index, position)] == (row.request, index, position)
        if self.layout.slot_bytes:
            assert self.slots[row.slot] == row.request


def used_bytes(scheduler, spec, naive):
    """What the running requests need, position by position."""
    layout = scheduler.memory.layout
    total = 0
    for request in scheduler.running:
        at, written = request.computed, request.computed + request.in_flight
        for part in (part for layer in spec.layers for part in layer.parts):
            total += naive.slot_bytes(part, layout.format.name, layout.dtype)
            if part.across:
                needed = naive.sees(part, 0, layout.other_tokens)
            else:
                needed = {p for q in range(at, written + 1) for p in naive.sees(part, q)}
                needed &= set(range(written))
            total += naive.entries(part, needed) * naive.entry_bytes(part, layout.format.name)
    return total


def held(scheduler, request):
    return len(scheduler.memory.holding(request.id).blocks())


def check_spread(memory, request, naive):
    """A paged table begins with the oldest token that is needed and ends with what is known."""
    for table in memory.holding(request.id).tables:
        group = table.group
        if group.reach.kind == "another":
            continue
        assert (table.end - 1) * group.block_size < request.known
        if request.in_flight:
            oldest = min(min(naive.sees(layer, request.computed)) for layer in group.layers)
            assert table.first * group.block_size <= oldest < (table.first + 1) * group.block_size


def check_held(scheduler, admitted, placement, naive):
    """No request holds more than planned; a prefill takes nothing after its admission."""
    memory = scheduler.memory
    for request in scheduler.running:
        known, first = admitted[request.id]
        now = held(scheduler, request)
        if memory.policy != PAGED:
            blocks = sorted(memory.holding(request.id).blocks())
            assert blocks == list(range(blocks[0], blocks[0] + first)) if blocks else first == 0
            assert request.preemptions == 0
            continue
        assert now <= memory.layout.blocks_for(request.most_slots, placement.in_flight)
        check_spread(memory, request, naive)
        if request.computed + request.in_flight <= known:
            assert now <= first


@st.composite
def scenes(draw, spec):
    """A layout, a placement, limits, traffic, and a pool that just fits the largest request."""
    layout = KVLayout.of(
        spec,
        draw(st.sampled_from(list(FORMATS))),
        draw(st.integers(1, 9)),
        other_tokens=draw(st.integers(0, 20)),
    )
    budget = draw(st.integers(1, 40))
    in_flight = draw(st.sampled_from([budget, budget + 5, LONGEST]))
    placement = Placement(
        draw(st.sampled_from([*POLICIES, PAGED])), layout, LONGEST, max(in_flight, min(budget, 64))
    )
    lengths = st.tuples(st.integers(1, 40), st.integers(1, 24))
    traffic = draw(st.lists(st.lists(lengths, max_size=3), min_size=1, max_size=6))
    sizes = [length for step in traffic for length in step]
    least = max(
        (placement.blocks_to_admit(prompt + new - 1, prompt, new) for prompt, new in sizes),
        default=1,
    )
    blocks = max(1, least) + draw(st.sampled_from([0, 0, 1, 5, 30]))
    size = PoolSize(blocks, draw(st.integers(1, 4)) if layout.slot_bytes else 0)
    config = SchedulerConfig(LONGEST, budget, draw(st.integers(1, 6)), checked=True)
    return placement, size, draw(st.sampled_from([0.0, 0.05, 0.5])), config, traffic


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_rows_find_what_they_need_and_everyone_finishes(any_spec, naive, answer, data):
    spec = data.draw(any_spec)
    placement, size, watermark, config, traffic = data.draw(scenes(spec))
    memory = make_memory(
        placement.policy,
        placement.layout,
        size,
        LONGEST,
        watermark,
        in_flight=placement.in_flight,
    )
    scheduler, cells = Scheduler(memory, config), Cells(placement.layout, naive)
    arrivals, admitted, submitted, ended = list(traffic), {}, [], []
    # The oldest gets on in every step and is never sent back, so this many steps are enough.
    most_steps = len(traffic) + sum(sum(length) for step in traffic for length in step)
    for _ in range(most_steps + 1):
        if not (arrivals or scheduler.has_work):
            break
        submitted += [scheduler.submit(*length) for length in (arrivals.pop(0) if arrivals else ())]
        plan = scheduler.schedule()
        check(scheduler)
        by_id = {request.id: request for request in scheduler.running}
        for request in plan.admitted:
            admitted[request] = by_id[request].known, held(scheduler, by_id[request])
        cells.carry_out(plan)
        check_held(scheduler, admitted, placement, naive)
        ledger = scheduler.ledger()
        assert ledger.used == used_bytes(scheduler, spec, naive)
        assert sum(ledger.to_dict().values()) == 2 * ledger.total == 2 * memory.total_bytes
        stops = frozenset(r.request for r in plan.rows if data.draw(st.integers(0, 19)) == 0)
        ended += scheduler.apply(plan, answer(plan, stops))
        assert scheduler.ledger().used == used_bytes(scheduler, spec, naive)
        if scheduler.running and data.draw(st.integers(0, 19)) == 0:
            ended.append(data.draw(st.sampled_from(scheduler.running)))
            scheduler.cancel(ended[-1])
    assert not scheduler.has_work
    assert set(ended) == set(submitted)
    assert memory.free_blocks == size.blocks
    assert memory.slots.free_blocks == size.slots


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_alone_a_request_needs_no_block_more_than_planned(any_spec, naive, answer, data):
    spec = data.draw(any_spec)
    layout = KVLayout.of(spec, "fp16", data.draw(st.integers(1, 9)), other_tokens=3)
    prompt, new = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 24))
    budget = data.draw(st.integers(1, 40))
    blocks = layout.blocks_for(prompt + new - 1, budget)
    slots = int(layout.slot_bytes > 0)
    memory = make_memory(PAGED, layout, PoolSize(blocks, slots), LONGEST, 0.0, in_flight=budget)
    scheduler = Scheduler(memory, SchedulerConfig(LONGEST, budget, checked=True))
    request, cells = scheduler.submit(prompt, new), Cells(layout, naive)
    free = None
    while scheduler.has_work:
        plan = scheduler.schedule()
        assert plan.preempted == ()
        if free is not None and request.computed < prompt:
            assert memory.free_blocks >= free
        free = memory.free_blocks
        cells.carry_out(plan)
        scheduler.apply(plan, answer(plan))
    if layout.block_bytes and blocks > 1:
        smaller = make_memory(
            PAGED, layout, PoolSize(blocks - 1, slots), LONGEST, 0.0, in_flight=budget
        )
        with pytest.raises(RequestRejected, match=f"{blocks:,} blocks, paged"):
            Scheduler(smaller, scheduler.config).submit(prompt, new)


def test_a_window_lets_its_blocks_go_while_it_runs(naive, answer):
    # Written out: a window of 6, blocks of 4. At most 5 earlier tokens and 4 in flight: 3 blocks.
    layout = KVLayout.of(naive.make_spec([SlidingAttention(2, 1, 8, 8, 6)]), "fp16", 4)
    memory = make_memory(PAGED, layout, 16, LONGEST, 0.0, in_flight=4)
    scheduler = Scheduler(memory, SchedulerConfig(LONGEST, 4, checked=True))
    scheduler.submit(18, 4)
    rows = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        rows.append((plan.rows[0].first, plan.rows[0].starts[0], plan.rows[0].tables[0]))
        scheduler.apply(plan, answer(plan))
    assert rows == [
        (0, 0, (0,)),
        (4, 0, (0, 1)),
        (8, 0, (0, 1, 2)),  # the token at 8 sees 3 to 8
        (12, 1, (1, 2, 0)),  # that at 12 sees 7 to 12, so the first block serves again
        (16, 2, (2, 0, 1)),  # 16 and 17, which see 11 to 17
        (18, 3, (0, 1)),  # 13 to 18
        (19, 3, (0, 1)),
        (20, 3, (0, 1, 2)),  # 15 to 20; the block before was free, and is taken again
    ]


def test_a_memory_planned_for_less_is_refused(naive):
    layout = KVLayout.of(naive.make_spec([SlidingAttention(2, 1, 8, 8, 6)]), "fp16", 4)
    memory = make_memory(PAGED, layout, 16, LONGEST, 0.0, in_flight=4)
    with pytest.raises(KvhouseError, match=r"token_budget 5: .* at most 4 tokens of a request"):
        Scheduler(memory, SchedulerConfig(LONGEST, 5))
    with pytest.raises(KvhouseError, match=r"max_length 65: .* at most 64 tokens"):
        Scheduler(memory, SchedulerConfig(LONGEST + 1, 4))
    # A request of 4 tokens has no more than 4 in flight, whatever the budget.
    assert not Scheduler(memory, SchedulerConfig(4, 5)).has_work
