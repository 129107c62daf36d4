"""Transfer times and the load rule against sums written out, and the rule at work in a replay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.core.keys import TokenKeys
from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Move, Row, StepPlan, Transfer
from kvhouse.core.tier import TierConfig
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.layout import KVLayout
from kvhouse.links import Link, TransferCost, load_rule, transfer_cost
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.spec.model import FullAttention, ModelSpec

DEVICE = Device("d", "d", 2**30, 1e9, {"bfloat16": 4e12}, "datasheet", "test")
LAYERS, HEADS, DIM, BODY = 3, 4, 8, 1000
SPEC = ModelSpec(
    name="toy",
    architecture="Toy",
    layers=(FullAttention(HEADS, 2, DIM, DIM),) * LAYERS,
    hidden_size=16,
    vocab_size=50,
    max_length=512,
    parameters=BODY + 2 * 50 * 16,
    matmul_parameters=BODY + 50 * 16,
    dtype="bfloat16",
)
LAYOUT = KVLayout.of(SPEC, "bf16", 4)
ROOFLINE = Roofline(SPEC, LAYOUT, DEVICE)
#: 4 tokens, 3 layers, 2 heads of 8 numbers of 2 bytes, keys and values.
BLOCK_BYTES = 4 * 3 * 2 * 8 * 2 * 2
HOST, DISK = Link(2e6, 0.001), Link(5e5, 0.01)


def test_a_plans_transfers():
    loads = (Transfer(0, 1, 2), Transfer(1, 0, 3), Transfer(0, 2, 4))
    stores = (Transfer(0, 5, 6), Transfer(0, 7, 8), Transfer(0, 9, 9))
    moves = (Move(0, 5, 1),)
    plan = StepPlan(0, (), (), (), (), loads, stores, moves)
    cost = transfer_cost(plan, 1000, [HOST, DISK])
    # Two blocks of 1000 bytes at 2 MB/s and one at 0.5 MB/s, and a latency for each tier.
    assert cost.load_seconds == pytest.approx(0.001 + 0.001 + 0.01 + 0.002)
    # Three blocks to the host and beside them one to the disk: the disk takes longer.
    assert cost.store_seconds == pytest.approx(0.012)
    assert cost.seconds(0.5) == pytest.approx(0.514)
    assert cost.seconds(0.001) == pytest.approx(0.026)


def test_no_transfers_take_no_time():
    empty = StepPlan(0, (), (), (), ())
    assert transfer_cost(empty, 1000, []) == TransferCost(0.0, 0.0)
    assert transfer_cost(empty, 1000, [HOST]).seconds(0.25) == 0.25


def flops(first, tokens):
    """FLOPs of a chunk, token by token; no logits."""
    attention = sum(
        2 * 2 * DIM * HEADS * LAYERS * (position + 1) for position in range(first, first + tokens)
    )
    return 2 * BODY * tokens + attention


@given(
    first=st.integers(0, 300),
    tokens=st.integers(1, 300),
    blocks=st.tuples(st.integers(0, 80), st.integers(0, 80)),
    bandwidth=st.floats(1e8, 1e14),
    latency=st.floats(0, 1e-6),
)
def test_loading_pays_where_it_is_sooner(first, tokens, blocks, bandwidth, latency):
    links = [Link(bandwidth, latency), Link(bandwidth / 3, 2 * latency)]
    seconds = sum(
        link.latency + count * BLOCK_BYTES / link.bandwidth
        for link, count in zip(links, blocks, strict=True)
        if count
    )
    sooner = flops(first, tokens) / 4e12 - seconds
    if abs(sooner) > 1e-15:
        assert load_rule(ROOFLINE, links)(first, tokens, blocks) == (sooner > 0)


@pytest.mark.parametrize(("bandwidth", "loads"), [(1e15, 5), (1e6, 0)])
def test_a_replay_loads_over_a_fast_link_and_computes_over_a_slow_one(bandwidth, loads):
    links = [Link(bandwidth)]
    memory = make_memory(
        "paged",
        LAYOUT,
        8,
        32,
        0.0,
        share=True,
        tiers=[TierConfig("host", 100 * BLOCK_BYTES, write="through")],
        pays=load_rule(ROOFLINE, links),
    )
    scheduler = Scheduler(memory, SchedulerConfig(32, checked=True))
    executor, texts, plans = ModelledExecutor(ROOFLINE, links), [], []
    for base in (0, 100, 200, 0):
        texts.append(list(range(base, base + 24)))
        scheduler.submit(24, 1, TokenKeys(texts[-1], 4))
        while scheduler.has_work:
            plan = scheduler.schedule()
            result, _ = scheduler.carry_out(plan, executor)
            plans.append((plan, result))
    plan, result = plans[-1]
    assert [load.tier for load in plan.loads] == [0] * loads
    assert plan.tokens == 24 - 4 * loads
    rows = ROOFLINE.step(plan).seconds
    loading = loads * BLOCK_BYTES / bandwidth
    storing = len(plan.stores) * BLOCK_BYTES / bandwidth
    assert plan.stores
    assert result.seconds == pytest.approx(loading + max(rows, storing))


def test_plans_without_transfers_take_the_rooflines_time():
    plan = StepPlan(0, (Row(0, 3, 4, True, ((0, 1),)),), (), (), ())
    assert ModelledExecutor(ROOFLINE).execute(plan).seconds == ROOFLINE.step(plan).seconds
    assert ModelledExecutor(ROOFLINE, [HOST]).execute(plan).seconds == ROOFLINE.step(plan).seconds
