"""Tiers below the pool in a replay: what they save, what they cost, and that nothing is lost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse import devices, spec
from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.core.step import Sampled, StepResult
from kvhouse.core.tier import TierConfig
from kvhouse.core.tiers import always
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.links import Link
from kvhouse.replayer import Setup, Tiering, Trace, TraceRequest, read_trace, replay
from kvhouse.replayer.compare import compare, variants
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.scenario import Scenario
from kvhouse.replayer.tiering import LinkedTier
from kvhouse.spec.model import FullAttention, ModelSpec

GIB = 2**30
A100 = devices.get("a100-80g")


def twice(seconds):
    """The first requests of the Mooncake slice, and the same once more, ``seconds`` later."""
    once = list(read_trace("mooncake-conv", limit=12, max_length=8192).requests)
    later = [one._replace(arrival=one.arrival + seconds) for one in once]
    return Trace("mooncake-conv, twice", [*once, *later])


#: 16 blocks of 512 tokens hold the longest request and little else.
RETURNING = Setup(
    twice(60.0),
    spec.load("llama-3.1-8b"),
    A100,
    kv_blocks=17,
    prefix_cache=True,
    block_size=512,
    max_length=8192,
)


@pytest.mark.parametrize("write", ["back", "through"])
def test_who_comes_back_is_served_sooner(write):
    without = RETURNING.drive()
    result = replace(RETURNING, tiering=Tiering(64 * GIB, write=write)).drive()
    assert without.tiers is None
    assert without.loaded_tokens == 0
    hits, (host,) = result.tiers, result.tiers.traffic
    assert result.first_token_seconds.mean < without.first_token_seconds.mean
    assert hits.prompt_tokens == result.loaded_tokens > 0.4 * result.prompt_tokens / 2
    # Where there is one group of layers, a block is loaded for each block of tokens.
    assert host.loaded.blocks * 512 == hits.prompt_tokens
    assert host.loaded.bytes == hits.prompt_tokens * 128 * 1024
    assert (host.declined.blocks, host.failed.blocks) == (0, 0)
    assert result.prefix.tokens + hits.prompt_tokens == result.reused_tokens
    assert without.computed_tokens - result.computed_tokens == (
        result.reused_tokens - without.reused_tokens
    )


def test_without_the_rule_a_slow_link_makes_it_slower():
    """At 500 MB/s a token of 128 KiB takes 0.26 ms, and computing it about 0.05 ms."""
    setup = replace(RETURNING, tiering=Tiering(64 * GIB, 5e8))
    scenario = setup.scenario()
    executor = ModelledExecutor(setup.roofline, [tier.link for tier in scenario.tiers])
    ruled, unruled = setup.drive(), replace(scenario, pays=always).drive(executor)
    assert ruled.loaded_tokens == 0 < unruled.loaded_tokens
    assert ruled.tiers.traffic[0].declined.blocks > 0
    assert ruled.first_token_seconds.mean < unruled.first_token_seconds.mean
    assert ruled.makespan_seconds < unruled.makespan_seconds


@pytest.mark.parametrize(
    "tiering",
    [Tiering(8 * GIB), Tiering(64 * 2**20, nvme_memory=8 * GIB, nvme_link=16e9)],
    ids=["host", "host and nvme"],
)
def test_a_preempted_request_is_swapped(tiering):
    trace = read_trace("azure-conv-2023", limit=60, max_length=4096)
    starved = Setup(
        trace,
        spec.load("llama-2-7b"),
        A100,
        kv_blocks=300,
        max_length=4096,
        watermark=0.0,
        as_backlog=True,
    )
    recomputing, swapping = starved.drive(), replace(starved, tiering=tiering).drive()
    assert recomputing.preemptions > 0 == recomputing.loaded_tokens
    assert swapping.preemptions > 0
    assert swapping.recomputed_tokens < recomputing.recomputed_tokens / 10
    assert swapping.tiers.resumed_tokens == swapping.loaded_tokens > 0
    assert swapping.tiers.prompt_tokens == swapping.reused_tokens == 0
    assert swapping.prefix is None
    assert swapping.makespan_seconds < recomputing.makespan_seconds
    for result in (recomputing, swapping):
        assert (result.submitted, result.finished) == (60, 60)
        assert result.output_tokens == sum(one.output_tokens for one in trace.requests)
        needed = result.prompt_tokens + result.output_tokens - result.finished
        assert result.computed_tokens == needed + result.recomputed_tokens
    traffic = swapping.tiers.traffic
    assert sum(tier.loaded.blocks for tier in traffic) * 16 >= swapping.loaded_tokens
    assert [tier.name for tier in traffic] == ["host", "nvme"][: len(traffic)]
    assert traffic[0].stored.blocks > 0
    assert traffic[-1].stored.blocks > 0


#: One layer, one head of one number: 8 bytes a token, 16 a block of 2.
TOY = ModelSpec("toy", "Toy", (FullAttention(1, 1, 1, 1),), 1, 10, 64, 100, 90, "float32")
LAYOUT = KVLayout.of(TOY, "fp32", 2)
DEVICE = Device("d", "d", 2**30, 1e12, {"float32": 100.0}, "given", "test")


def toy(requests, blocks, tiers, **options):
    return Scenario(
        Trace("toy", requests),
        LAYOUT,
        "paged",
        0,
        SchedulerConfig(max_length=32, checked=True),
        0.0,
        kv_blocks=blocks,
        tiers=tiers,
        **options,
    )


def test_times_by_hand():
    """A prompt of 5 tokens is pushed out by one of 7, and comes again.

    FLOPs of a step: 2 * 80 a token, 2 * 10 for its sample, 4 for each pair of tokens. Bandwidth
    is no limit. A block of 16 bytes takes 0.5 s, and 3 s pass before: loads go first, then rows and
    stores beside each other.
    """
    requests = [
        TraceRequest(0.0, 5, 1, hash_ids=(1, 2, 3), hash_block=2),
        TraceRequest(100.0, 7, 1, hash_ids=(4, 5, 6, 7), hash_block=2),
        TraceRequest(200.0, 5, 1, hash_ids=(1, 2, 8), hash_block=2),
    ]
    link = Link(32.0, 3.0)
    scenario = toy(requests, 4, (LinkedTier(TierConfig("host", 1600), link),), prefix_cache=True)
    records, plans = [], []
    result = scenario.drive(
        ModelledExecutor(Roofline(TOY, LAYOUT, DEVICE), [link]),
        on_ended=records.append,
        on_plan=plans.append,
    )
    five = (160 * 5 + 20 + 4 * 15) / 100
    seven = (160 * 7 + 20 + 4 * 28) / 100
    one = (160 + 20 + 4 * 5) / 100
    two_blocks = 3 + 2 * 0.5
    assert [len(plan.stores) for plan in plans] == [0, 2, 2]
    assert [len(plan.loads) for plan in plans] == [0, 0, 2]
    assert [record.first_token_seconds for record in records] == pytest.approx(
        [five, seven, two_blocks + two_blocks]
    )
    assert one < two_blocks < seven
    (host,) = result.tiers.traffic
    assert (result.tiers.requests, result.tiers.request_share) == (1, 1 / 3)
    assert (result.tiers.prompt_tokens, result.tiers.prompt_share) == (4, 4 / 17)
    assert (host.capacity.blocks, host.capacity.bytes) == (100, 1600)
    assert (host.hits.blocks, host.loaded.blocks, host.loaded.bytes) == (2, 2, 32)
    assert (host.stored.blocks, host.stored.bytes) == (4, 64)
    assert result.scenario["tiers"] == [
        {
            "name": "host",
            "bytes": 1600,
            "replacement": "lru",
            "write": "back",
            "bytes_per_second": 32.0,
            "latency_seconds": 3.0,
        }
    ]


class Flaky:
    """A second a step; every transfer whose turn it is fails."""

    timing = "modelled"

    def __init__(self, turns):
        self.turns, self.transfers = turns, 0

    def fails(self):
        self.transfers += 1
        return self.turns[self.transfers % len(self.turns)] and self.transfers < 200

    def execute(self, plan):
        loads = tuple(load.block for load in plan.loads if self.fails())
        stores = tuple(store for store in plan.stores if self.fails())
        moves = tuple(move for move in plan.moves if self.fails())
        void = plan.void(loads)
        rows = (row for row in plan.rows if row.samples and row.request not in void)
        sampled = tuple(Sampled(row.request) for row in rows)
        return StepResult(1.0, sampled, loads, stores, moves)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 12)), min_size=2, max_size=8),
    same=st.integers(1, 3),
    blocks=st.integers(14, 22),
    tiers=st.lists(st.integers(1, 30), min_size=1, max_size=2),
    write=st.sampled_from(["back", "through"]),
    prefix_cache=st.booleans(),
    turns=st.lists(st.booleans(), min_size=1, max_size=6),
)
@settings(max_examples=150)
def test_nothing_is_lost_whatever_fails(lengths, same, blocks, tiers, write, prefix_cache, turns):
    """``summarise`` balances what came into the pool and what left it, to the last token."""
    requests = [
        TraceRequest(float(i), prompt, out, hash_ids=tuple(range(i % same * 10, 20)), hash_block=2)
        for i, (prompt, out) in enumerate(lengths)
    ]
    below = tuple(
        LinkedTier(TierConfig(f"tier {i}", size * 16, write=write if i == 0 else "back"), Link(1.0))
        for i, size in enumerate(tiers)
    )
    records = []
    result = toy(requests, blocks, below, prefix_cache=prefix_cache).drive(
        Flaky(turns), on_ended=records.append
    )
    assert result.finished == len(requests)
    assert result.loaded_tokens == result.tiers.prompt_tokens + result.tiers.resumed_tokens
    if not any(turns):
        # Blocks of the pool between loaded ones count as loaded tokens, too.
        loaded = sum(tier.loaded.blocks for tier in result.tiers.traffic)
        assert loaded * 2 <= result.loaded_tokens
        assert not any(tier.failed.blocks for tier in result.tiers.traffic)
    assert all(record.found + record.loaded_first < record.prompt_tokens for record in records)
    if not prefix_cache:
        assert (result.prefix, result.reused_tokens, result.tiers.prompt_tokens) == (None, 0, 0)


def test_a_comparison_has_paged_with_tiers_last():
    setup = replace(RETURNING, tiering=Tiering(8 * GIB))
    shown = [
        (one.policy, one.prefix_cache, bool(one.tiering))
        for one in variants(setup, ["contiguous-oracle", "paged"])
    ]
    assert shown == [
        ("contiguous-oracle", False, False),
        ("paged", False, False),
        ("paged", True, False),
        ("paged", True, True),
    ]
    bare = variants(replace(setup, prefix_cache=False), ["paged"])
    assert [(one.prefix_cache, bool(one.tiering)) for one in bare] == [
        (False, False),
        (False, True),
    ]
    results = compare(variants(setup, ["paged"]))
    assert [result.tiers is None for result in results] == [True, True, False]
    with pytest.raises(KvhouseError, match="a tier goes with paged"):
        variants(replace(setup, prefix_cache=False), ["contiguous-max"])


def test_the_devices_link_is_taken_where_none_is_given():
    assert A100.host_link is not None
    (host,) = Tiering(GIB).on(A100)
    assert host.link == Link(A100.host_link, 10e-6)
    (nvme,) = Tiering(nvme_memory=GIB, nvme_link=6e9, write="through").on(A100)
    assert (nvme.config.name, nvme.config.write) == ("nvme", "through")
    both = Tiering(GIB, 1e9, GIB, 2e9, 0.5, "arc", "through").on(A100)
    assert [(t.config.replacement, t.config.write, t.link) for t in both] == [
        ("arc", "through", Link(1e9, 0.5)),
        ("arc", "back", Link(2e9, 0.5)),
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"host_memory": 0}, "host memory of 0 bytes"),
        ({"host_memory": 1000}, "tier host: 1,000 bytes hold no block"),
        ({"host_memory": GIB, "host_link": 0.0}, "a host link of 0.0 bytes per second"),
        ({"host_link": 1e9}, "a rate of the host link without host memory"),
        ({"nvme_link": 1e9}, "a rate of the nvme link without nvme memory"),
        ({"nvme_memory": GIB}, "between l4 and nvme memory is not known: give it"),
        ({"nvme_memory": GIB, "nvme_link": float("inf")}, "a nvme link of inf"),
        ({"host_memory": GIB, "link_latency": -1.0}, "a link latency of -1.0 s"),
        ({"host_memory": GIB, "tier_replacement": "fifo"}, "unknown replacement 'fifo'"),
        ({"host_memory": GIB, "tier_write": "never"}, "unknown write 'never'"),
        ({"host_memory": GIB, "policy": "contiguous"}, "only paged memory can have tiers"),
        ({"host_memory": GIB, "device": replace(A100, host_link=None)}, "is not known: give it"),
        ({"host_memory": GIB, "device": replace(A100, flops={})}, "has no FLOP/s"),
    ],
)
def test_impossible_tiers(change, reason):
    options = {"trace": "mooncake-conv", "model": "llama-2-7b", "device": "l4", "kv_memory": GIB}
    with pytest.raises(KvhouseError, match=reason):
        replay(**{**options, **change})
