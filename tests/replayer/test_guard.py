"""The guards: never a false alarm, close to the truth, and what cannot be is an error."""

from dataclasses import replace

import pytest

from kvhouse import devices, spec
from kvhouse.core.memory import make_memory
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Move, Row, Sampled, StepPlan, StepResult, Transfer
from kvhouse.core.tier import TierConfig
from kvhouse.costs import Roofline
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.links import Link
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.guard import PhysicsError, ResidencyGuard, StepGuard
from kvhouse.spec.resolve import catalogue

LLAMA = spec.load("llama-3-8b")
LAYOUT = KVLayout.of(LLAMA, "bf16")
A100 = devices.get("a100-80g")


def plan_of(*rows, tables=None):
    made = (
        Row(i, first, count, True, (tuple(tables[i]) if tables else (),))
        for i, (first, count) in enumerate(rows)
    )
    return StepPlan(0, tuple(made), (), (), ())


PLANS = {
    "decode": plan_of(*[(1000, 1)] * 64),
    "long decode": plan_of(*[(100_000, 1)] * 8),
    "prefill": plan_of((0, 2048)),
    "late chunk": plan_of((30_000, 512)),
    "mixed": plan_of((0, 500), (3000, 700), *[(5000 + i, 1) for i in range(100)]),
}


class Takes:
    """Takes a share of the roofline's time."""

    timing = "modelled"

    def __init__(self, roofline, share):
        self.roofline, self.share = roofline, share

    def execute(self, plan):
        sampled = tuple(Sampled(row.request) for row in plan.rows if row.samples)
        return StepResult(self.roofline.step(plan).seconds * self.share, sampled)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_it_is_close_to_the_roofline_and_never_above(plan):
    """It leaves out the output projection's bytes, 7 % of this model's; nothing else."""
    roofline = Roofline(LLAMA, LAYOUT, A100)
    cost = roofline.step(plan)
    moved, flops = StepGuard(ModelledExecutor(roofline), roofline).least(plan)
    assert cost.bytes - 2 * LLAMA.vocab_size * LLAMA.hidden_size == pytest.approx(moved, abs=2)
    assert flops == cost.flops


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_step_that_is_too_fast_is_an_error(plan):
    roofline = Roofline(LLAMA, LAYOUT, A100)
    StepGuard(Takes(roofline, 1.0), roofline).execute(plan)
    with pytest.raises(PhysicsError, match="step 0 took"):
        StepGuard(Takes(roofline, 0.9), roofline).execute(plan)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_no_time_is_too_fast(seconds):
    class Broken(Takes):
        def execute(self, plan):
            return replace(super().execute(plan), seconds=seconds)

    roofline = Roofline(LLAMA, LAYOUT, A100)
    with pytest.raises(PhysicsError):
        StepGuard(Broken(roofline, 1.0), roofline).execute(PLANS["decode"])


def test_a_clock_that_forgets_the_kv_is_caught():
    """As a published simulator's, whose steps ran below the bandwidth's floor."""

    class WeightsOnly(Takes):
        def execute(self, plan):
            return replace(super().execute(plan), seconds=LLAMA.weight_bytes() / A100.bandwidth)

    roofline = Roofline(LLAMA, LAYOUT, A100)
    with pytest.raises(PhysicsError):
        StepGuard(WeightsOnly(roofline, 1.0), roofline).execute(PLANS["decode"])


@pytest.mark.parametrize("name", catalogue())
def test_no_model_raises_a_false_alarm(name):
    model = spec.load(name)
    try:
        layout = KVLayout.of(model, "bf16")
        for weight_dtype in (None, "float32", "int8", "int4", "nf4"):
            roofline = Roofline(model, layout, A100, weight_dtype)
            guard = StepGuard(ModelledExecutor(roofline), roofline, weight_dtype)
            for plan in PLANS.values():
                guard.execute(plan)
    except KvhouseError as error:  # weights that are not known have no roofline
        assert "weights" in str(error)  # noqa: PT017


TRANSFERS = replace(
    PLANS["decode"],
    loads=(Transfer(0, 1, 2), Transfer(1, 0, 3), Transfer(0, 2, 4)),
    stores=(Transfer(0, 5, 6),),
    moves=tuple(Move(0, place, place) for place in range(5)),
)


def test_transfers_take_time_on_the_busiest_link():
    """Blocks of 2 MiB at 1 and 4 MiB/s: 2 loads from the host, 5 moves to the disk."""
    roofline = Roofline(LLAMA, LAYOUT, A100)
    links = [Link(2**20), Link(2**22)]
    modelled = ModelledExecutor(roofline, links)
    guard = StepGuard(modelled, roofline, None, links)
    assert guard.least_transfer(TRANSFERS) == 4.0
    assert guard.least_transfer(replace(TRANSFERS, loads=())) == 2.5
    assert guard.least_transfer(PLANS["decode"]) == 0.0
    guard.execute(TRANSFERS)


def test_a_clock_that_forgets_the_links_is_caught():
    roofline = Roofline(LLAMA, LAYOUT, A100)
    with pytest.raises(PhysicsError, match="loads 3, stores 1 and moves 5 blocks of 2,097,152"):
        StepGuard(Takes(roofline, 1.0), roofline, None, [Link(2**20)] * 2).execute(TRANSFERS)


def test_a_transfer_outside_its_tier_is_an_error():
    tiers = [TierConfig("host", 6 * LAYOUT.block_bytes), TierConfig("disk", 5 * LAYOUT.block_bytes)]
    memory = make_memory("paged", LAYOUT, 400, 100, 0.0, tiers=tiers)
    empty = replace(TRANSFERS, rows=())
    ResidencyGuard(memory).check(empty)
    for beyond in (
        replace(empty, loads=(Transfer(1, 5, 0),)),
        replace(empty, stores=(Transfer(0, 6, 0),)),
        replace(empty, moves=(Move(0, 6, 0),)),
        replace(empty, moves=(Move(0, 0, 5),)),
    ):
        with pytest.raises(PhysicsError, match="a slot outside its tier"):
            ResidencyGuard(memory).check(beyond)


def filled(blocks=10, requests=2):
    """A scheduler with requests of 40 tokens, 3 blocks each, in its first step."""
    memory = make_memory("paged", LAYOUT, blocks, 100, 0.0)
    scheduler = Scheduler(memory, SchedulerConfig(100))
    for _ in range(requests):
        assert isinstance(scheduler.submit(40, 5), Request)
    return memory, scheduler.schedule()


def test_a_true_step_passes():
    memory, plan = filled()
    assert len({block for row in plan.rows for block in row.tables[0]}) == 6
    ResidencyGuard(memory).check(plan)


@pytest.mark.parametrize(
    ("rows", "tables", "reason"),
    [
        ([(0, 1000)], [range(3)], "1,000 tokens of 131,072 bytes are said to lie in 6 blocks"),
        ([(0, 40), (0, 40)], [(0, 1, 2), (2, 3, 4)], "a block lies in two tables"),
        ([(0, 40)], [(8, 9, 10)], "a block outside the pool"),
        ([(0, 40)], [(-1, 0, 1)], "a block outside the pool"),
    ],
)
def test_what_the_pool_cannot_hold_is_an_error(rows, tables, reason):
    memory, _ = filled()
    with pytest.raises(PhysicsError, match=reason):
        ResidencyGuard(memory).check(plan_of(*rows, tables=tables))
