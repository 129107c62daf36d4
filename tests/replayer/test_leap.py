"""Leaping is stepping: the same records, intervals, events, pool and results, to the last bit.

And the same plans: a leaping drive that is made to step now and then, at whatever moment, plans
byte for byte what a drive plans that steps throughout.
"""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.leap import Leaper
from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.tier import TierConfig
from kvhouse.costs import FittedSteps, Roofline, StepRates
from kvhouse.devices import Device
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.links import Link
from kvhouse.replayer import leaping
from kvhouse.replayer.arrivals import SteppedArrivals, TimedArrivals
from kvhouse.replayer.drive import drive
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.guard import PhysicsError, ResidencyGuard, StepGuard
from kvhouse.replayer.pool_map import look_at
from kvhouse.replayer.prefixes import keys_of
from kvhouse.replayer.recorder import Recorder
from kvhouse.replayer.summary import summarise
from kvhouse.replayer.traces import TraceRequest
from kvhouse.spec.layers import ChunkedAttention, FullAttention, SlidingAttention, State
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.tensors import Tensor

FULL = FullAttention(2, 1, 4, 4)
WIDE = FullAttention(4, 2, 8, 8)
LAYERS = {
    "full": (FULL, FULL),
    "two groups": (FULL, WIDE, WIDE),
    "state": (FULL, State((Tensor(8),))),
    "states only": (State((Tensor(8),)),),
    "window": (FULL, SlidingAttention(2, 1, 4, 4, window=5)),
    "chunk": (FULL, ChunkedAttention(2, 1, 4, 4, chunk=6)),
}
SLOW, FAST = 2.0**20, 2.0**22


class Capturing(ModelledExecutor):
    """Keeps every plan that it was given, by its number."""

    def __init__(self, *args):
        super().__init__(*args)
        self.plans = {}

    def execute(self, plan):
        self.plans[plan.index] = plan.encode()
        return super().execute(plan)


def spec_of(kind):
    return ModelSpec("toy", "Toy", LAYERS[kind], 8, 30, 100, 1240, 1240, "float32")


def play(setup, requests, *, step, coins=(), recorder=None):
    """Drive once; ``coins`` says which of the plans are stepped all the same."""
    spec = spec_of(setup["kind"])
    layout = KVLayout.of(spec, "fp32", setup["block_size"])
    names = ("max_length", "token_budget", "max_running", "order", "prefill_first")
    config = SchedulerConfig(checked=True, **{name: setup[name] for name in names})
    paged = setup["policy"] == "paged"
    shareable = paged and setup["kind"] not in ("state", "states only")
    tiers = []
    if shareable and setup["tier"]:
        tiers = [TierConfig("host", 6 * layout.block_bytes, write=setup["tier"])]
    blocks = setup["blocks"] * len(layout.groups)
    memory = make_memory(
        setup["policy"],
        layout,
        PoolSize(blocks, config.max_running * bool(layout.slot_bytes)),
        config.max_length,
        setup["watermark"],
        in_flight=config.token_budget,
        share=shareable and setup["share"],
        tiers=tiers,
        # The buddy system does not know beforehand which odd numbers of blocks can never fit.
        fit="first" if setup["kind"] in ("window", "chunk") else setup["fit"],
    )
    device = Device("toy", "toy", 2**20, SLOW, {"float32": setup["flops"]}, "datasheet", "test")
    roofline = Roofline(spec, layout, device)
    links = [Link(1e6)] * len(tiers)
    rates = setup["rates"]
    executor = Capturing(FittedSteps(spec, layout, rates) if rates else roofline, links)
    events, flips = [], iter(coins)

    class Erratic(Leaper):
        def plan(self):
            return None if next(flips, False) else super().plan()

    timed = TimedArrivals(request for _, request in requests)
    arrivals = SteppedArrivals(requests) if setup["stepped"] else timed
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(leaping, "Leaper", Erratic)
        log = drive(
            Scheduler(memory, config),
            executor if rates else StepGuard(executor, roofline, links=links),
            arrivals,
            keys=(lambda r: keys_of(r, layout.block_size)) if memory.sharing else None,
            on_plan=(lambda _: None) if step else None,
            on_event=lambda event: events.append(event.encode()),
            guard=ResidencyGuard(memory),
            recorder=recorder,
        )
    if recorder:
        recorder.finish(log)
    result = summarise(log, memory, timeline=3).to_dict()
    facts = (
        log.requests,
        list(log.intervals),
        log.sampled,
        log.refusals,
        events,
        json.dumps(result),
        memory.pool.free_ids(),
        memory.slots.free_ids(),
        [(tier.ranked, tier.counters) for tier in memory.tiers or ()],
    )
    return facts, executor.plans


#: Seconds of a part of a step: odd ones, whose floats are not exact, and none.
seconds = st.sampled_from([0.0, 1e-3 / 3, 1e-7, 7.7e-5])
rates = st.builds(
    StepRates,
    st.just((1, 3, 8)),
    st.tuples(seconds, seconds, seconds),
    *[seconds] * 3,
    *[st.sampled_from([0.0, 1e-7 / 3, 3.3e-6])] * 3,
)

setups = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["full", "full", "full", *LAYERS]),
        "policy": st.sampled_from(
            ["paged", "paged", "paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle"]
        ),
        "fit": st.sampled_from(["first", "best", "buddy"]),
        "share": st.booleans(),
        "tier": st.sampled_from([None, None, None, "back", "through"]),
        "blocks": st.integers(1, 40),
        "block_size": st.integers(1, 5),
        "max_length": st.integers(2, 40),
        "watermark": st.sampled_from([0.0, 0.05, 0.25]),
        "token_budget": st.sampled_from([1, 2, 3, 5, 8, 24, 100]),
        "max_running": st.integers(1, 7),
        "order": st.sampled_from(["fcfs", "fcfs", "priority", "shortest"]),
        "prefill_first": st.booleans(),
        "stepped": st.booleans(),
        "flops": st.sampled_from([SLOW, FAST]),
        "rates": st.none() | rates,
    }
)
gaps = st.sampled_from([0, 0, 1, 3, 7, 40])
asked = st.tuples(
    gaps, st.integers(1, 20), st.integers(1, 26), st.lists(st.integers(0, 2)), st.integers(0, 2)
)
traffic = st.lists(asked, min_size=1, max_size=9)
coins = st.lists(st.booleans(), max_size=60)


def requests_of(rows):
    """Each with its step; ids name blocks of 4 tokens, at times the output's as well."""
    moment, made = 0, []
    for gap, prompt, output, ids, priority in rows:
        moment += gap
        # An id stands for all tokens before it too, so it is made from the ids before it.
        chain = tuple(hash(tuple(ids[: end + 1])) % 2**40 for end in range(len(ids)))
        request = TraceRequest(moment * 0.002, prompt, output, chain, 4, priority=priority)
        made.append((moment, request))
    return made


@settings(max_examples=400, deadline=None)
@given(setups, traffic, coins)
def test_leaping_is_stepping(setup, rows, flips):
    requests = requests_of(rows)
    stepped, plans = play(setup, requests, step=True)
    leapt, _ = play(setup, requests, step=False)
    assert leapt == stepped
    mixed, some = play(setup, requests, step=False, coins=flips)
    assert mixed == stepped
    assert some.items() <= plans.items()


def _seen(recorder):
    """What was recorded, as plain values."""
    recording = recorder.recording
    pool = {
        name: getattr(recording.pool, name).tolist()
        for name in ("times", "blocks", "owners", "kinds", "counts")
    }
    return pool, recording.pool.requests, recording.timeline, recording.curves


class Naive(Recorder):
    """Counts the blocks of each moment anew, one by one, and compares them with the ledger."""

    def look(self, now, scheduler):
        if now >= self.due:
            sight = look_at(scheduler, np.arange(scheduler.memory.total_blocks))
            kinds = [LEDGER_CLASSES[kind] for kind in sight.kinds]
            assert kinds == naive_kinds(scheduler)
            assert sight.counts.tolist() == [kinds.count(name) for name in LEDGER_CLASSES]
            agree(Counter(kinds), scheduler)
            for block, (owner, kind) in enumerate(zip(sight.owners, kinds, strict=True)):
                holders = {request.id for request in holders_of(scheduler, block)}
                assert holders == ({owner - 1} if owner else set()) or kind == "shared"
        super().look(now, scheduler)


def holders_of(scheduler, block):
    tables = scheduler.memory.holding
    return [r for r in scheduler.running if any(block in t.ids for t in tables(r.id).tables)]


def naive_kinds(scheduler):
    """The class of each block, from what its holder needs of each token in it."""
    memory, head = scheduler.memory, scheduler.waiting.head
    scattered = bool(head and memory.pool.unusable(memory.blocks_to_admit(head)))
    kinds = []
    for block in range(memory.total_blocks):
        holders = holders_of(scheduler, block)
        if len(holders) > 1:
            kinds.append("shared")
        elif holders:
            kinds.append(naive_kind(memory, holders[0], block))
        elif memory.sharing and memory.sharing.pool.content(block):
            kinds.append("cached")
        else:
            kinds.append("external" if scattered else "free")
    return kinds


def naive_kind(memory, request, block):
    (table,) = (t for t in memory.holding(request.id).tables if block in t.ids)
    size = table.group.block_size
    first = (table.first + table.ids.index(block)) * size
    tokens = range(first, first + size)
    known, last = request.computed + request.in_flight, request.most_slots
    if any(table.group.reach.first(request.computed) <= token < known for token in tokens):
        return "used"
    return "reserved" if any(known <= token < last for token in tokens) else "internal"


def agree(blocks, scheduler):
    """The ledger says the same of whole blocks, and splits what is held further."""
    ledger, memory = scheduler.ledger(), scheduler.memory
    block = memory.layout.block_bytes
    slots = memory.slots.free_blocks * memory.layout.slot_bytes
    assert blocks["free"] * block + slots == ledger.free
    for name in ("external", "cached", "shared"):
        assert blocks[name] * block == getattr(ledger, name)
    states = len(scheduler.running) * memory.layout.slot_bytes
    held = sum(blocks[name] for name in ("used", "reserved", "internal")) * block
    assert held == ledger.used - states + ledger.reserved + ledger.internal
    assert ledger.used - states <= blocks["used"] * block
    assert (blocks["reserved"] + blocks["internal"]) * block <= ledger.reserved + ledger.internal


@settings(max_examples=200, deadline=None)
@given(setups, traffic, st.sampled_from([0.0, 0.002, 0.1]))
def test_a_recorder_changes_nothing_and_sees_what_the_ledger_counts(setup, rows, span):
    requests = requests_of(rows)
    plain, _ = play(setup, requests, step=True)
    naive = Naive(span)
    stepped, _ = play(setup, requests, step=True, recorder=naive)
    assert stepped == plain
    leapt_by = Recorder(span)
    leapt, _ = play(setup, requests, step=False, recorder=leapt_by)
    assert leapt == plain
    assert _seen(leapt_by) == _seen(naive)
    assert bool(len(naive.recording.pool.times)) == bool(stepped[1])


def test_an_idle_request_at_the_start_of_a_chunk_needs_nothing():
    """Its last block holds a token of the chunk before and none of its own yet."""
    changes = {"kind": "chunk", "blocks": 3, "max_length": 8, "token_budget": 1, "max_running": 2}
    setup = BUSY | changes | {"watermark": 0.0, "prefill_first": True, "flops": SLOW}
    naive = Naive(0.0)
    play(setup, requests_of([(0, 6, 2, [], 0), (0, 1, 1, [], 0)]), step=True, recorder=naive)
    assert len(naive.recording.pool.times) > 2


BUSY = {
    "kind": "full",
    "policy": "paged",
    "fit": "first",
    "share": False,
    "tier": None,
    "blocks": 70,
    "block_size": 4,
    "max_length": 40,
    "watermark": 0.05,
    "token_budget": 24,
    "max_running": 7,
    "order": "fcfs",
    "prefill_first": False,
    "stepped": False,
    "flops": FAST,
    "rates": None,
}
ROWS = [(3, 5, 26, [0, 1], 0), (1, 9, 20, [0, 1, 2, 2, 2], 1), (40, 20, 20, [0, 1], 0)] * 3


@pytest.mark.parametrize("changes", [{}, {"share": True}, {"policy": "contiguous-max"}])
def test_the_property_meets_leaps(changes):
    """Hardly any step is planned alone here, though prompts come while others decode."""
    setup = BUSY | changes
    _, plans = play(setup, requests_of(ROWS), step=True)
    _, alone = play(setup, requests_of(ROWS), step=False)
    assert len(plans) >= 50
    assert not alone


def leaps_of(setup, rows):
    """Of each stretch: its steps, the tokens of the prompt that goes on, and why the head waits."""
    found = []

    class Watched(Leaper):
        def advance(self, steps):
            refusal = self.scheduler.refusal
            reason = refusal and ("watermark" if refusal.needed <= refusal.free else "full")
            found.append((steps, self.stretch.chunk, reason))
            return super().advance(steps)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(f"{__name__}.Leaper", Watched)
        play(setup, requests_of(rows), step=False)
    return found


@pytest.mark.parametrize("share", [False, True])
def test_the_property_meets_prompts_that_go_on(share):
    """Of a budget of 5, two that decode leave 3 a step to prompts of 20 tokens."""
    setup = BUSY | {"token_budget": 5, "share": share}
    rows = [(0, 2, 26, [], 0), (0, 2, 26, [], 0), (0, 20, 3, [0, 1], 0), (0, 20, 3, [0, 2], 0)]
    found = leaps_of(setup, rows)
    assert max(steps for steps, chunk, _ in found if chunk == 3) >= 4


@pytest.mark.parametrize(("watermark", "reason"), [(0.0, "full"), (0.6, "watermark")])
def test_the_property_meets_refusals_beside_a_prefix_cache(watermark, reason):
    setup = BUSY | {"share": True, "watermark": watermark, "blocks": 16}
    found = leaps_of(setup, [(0, 20, 12, [0], 0), (0, 20, 12, [1], 0), (0, 28, 5, [2], 0)])
    assert max(steps for steps, _, why in found if why == reason) >= 8


@pytest.mark.parametrize(
    "changes",
    [{"kind": "window"}, {"share": True, "tier": "back"}, {"blocks": 11, "watermark": 0.0}],
)
def test_what_cannot_leap_steps(changes):
    _, plans = play(BUSY | changes, requests_of(ROWS), step=True)
    _, alone = play(BUSY | changes, requests_of(ROWS), step=False)
    assert alone
    assert len(alone) == len(plans) or "blocks" in changes


class Hasty(ModelledExecutor):
    """Says that its later steps take a little less than they can."""

    def __init__(self, roofline):
        super().__init__(roofline)
        self.line = self._hasty

    def _hasty(self, *asked, going_on=False):
        line = self.roofline.line(*asked, going_on=going_on)
        line.more_bytes //= 2
        return line


def test_a_leap_that_is_too_fast_is_an_error():
    spec = spec_of("full")
    layout = KVLayout.of(spec, "fp32", 4)
    device = Device("toy", "toy", 2**20, SLOW, {"float32": 1e12}, "datasheet", "test")
    roofline = Roofline(spec, layout, device)
    memory = make_memory("paged", layout, 400, 2000)
    # The weights of the output projection are not asked for, so only long requests tell.
    arrivals = TimedArrivals([TraceRequest(0.0, 4, 900)])
    with pytest.raises(PhysicsError, match=r"took .* s, but moves"):
        drive(
            Scheduler(memory, SchedulerConfig(2000)), StepGuard(Hasty(roofline), roofline), arrivals
        )
