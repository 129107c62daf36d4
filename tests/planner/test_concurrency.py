"""The closed form against the allocator and the scheduler, which are asked by trying."""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.memory import make_memory
from kvhouse.core.policy import POLICIES, Placement, get_policy
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.errors import KvhouseError, RequestRejected
from kvhouse.formats import FORMATS
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.planner import requests_that_fit
from kvhouse.spec.model import FullAttention, ModelSpec

shapes = st.builds(
    FullAttention,
    query_heads=st.just(8),
    kv_heads=st.sampled_from([1, 2, 8]),
    key_dim=st.sampled_from([8, 64, 96]),
    value_dim=st.sampled_from([8, 64]),
)


@st.composite
def pools(draw):
    """A layout, a pool, a length and a longest length; the length always fits alone."""
    layer, layers = draw(shapes), draw(st.integers(1, 4))
    spec = ModelSpec("m", "M", (layer,) * layers, 64, 100, 4096, 1, 1, "float16")
    kv_format = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    layout = KVLayout.of(spec, kv_format, draw(st.integers(1, 64)))
    max_length = draw(st.integers(2, 600))
    tokens = draw(st.integers(1, max_length - 1))
    budget = draw(st.integers(layout.block_bytes, 400 * layout.block_bytes))
    return layout, layout.blocks_in(budget), tokens, max_length


policies = st.sampled_from(POLICIES)
watermarks = st.sampled_from([0.0, 0.01, 0.05, 0.3, 0.9])


@given(pools(), policies, watermarks, st.data())
def test_the_planner_counts_what_the_allocator_admits(pool, policy, watermark, data):
    layout, blocks, tokens, max_length = pool
    new = data.draw(st.integers(1, tokens))
    memory = make_memory(policy, layout, blocks, max_length, watermark)
    requests = (Request(n, tokens - new, new, generated=new) for n in count())
    admitted = next(r.id for r in requests if memory.admit(r, alone=r.id == 0) is not None)
    placement = Placement(policy, layout, max_length, max_length)
    assert requests_that_fit(placement, PoolSize(blocks), tokens, new, watermark) == admitted


@given(pools(), policies, watermarks)
def test_the_planner_counts_what_the_scheduler_runs(pool, policy, watermark):
    layout, blocks, tokens, max_length = pool
    placement = Placement(policy, layout, max_length, max_length)
    # A request of one new token is admitted with its prompt, which is one token less.
    known = tokens if policy == "paged" else tokens + 1
    planned = requests_that_fit(placement, PoolSize(blocks), known, 1, watermark)
    if planned == 0:  # then the scheduler rejects such a request at submission
        return
    memory = make_memory(policy, layout, blocks, max_length, watermark)
    limit = blocks + 1
    scheduler = Scheduler(memory, SchedulerConfig(max_length, limit * tokens, limit))
    for _ in range(limit):
        scheduler.submit(tokens, 1)
    assert len(scheduler.schedule().admitted) == planned


@given(pools(), policies, st.integers(0, 50))
def test_more_memory_never_fits_fewer(pool, policy, more):
    layout, blocks, tokens, max_length = pool
    placement = Placement(policy, layout, max_length, max_length)
    fewer = requests_that_fit(placement, PoolSize(blocks), tokens, 1)
    assert requests_that_fit(placement, PoolSize(blocks + more), tokens, 1) >= fewer


@st.composite
def planned(draw, spec):
    """A placement of any policy and format, a pool, and requests of so many tokens."""
    layout = KVLayout.of(
        spec,
        draw(st.sampled_from(list(FORMATS))),
        draw(st.integers(1, 20)),
        other_tokens=draw(st.integers(0, 40)),
    )
    max_length = draw(st.integers(2, 120))
    placement = Placement(draw(policies), layout, max_length, draw(st.integers(1, 120)))
    one = layout.block_bytes * (1 + layout.blocks_for(max_length)) + layout.slot_bytes
    size = layout.pool_in(draw(st.integers(one // 2, 12 * one)), draw(st.integers(1, 120)))
    if draw(st.booleans()):
        size = PoolSize(max(1, size.blocks), draw(st.integers(1, 9)) if size.slots else 0)
    return placement, size, draw(st.integers(1, max_length - 1))


def memory_of(placement, size, watermark):
    return make_memory(
        placement.policy,
        placement.layout,
        size,
        placement.max_length,
        watermark,
        in_flight=placement.in_flight,
    )


@settings(deadline=None, max_examples=200)
@given(data=st.data(), watermark=watermarks)
def test_for_every_kind_of_layer_the_planner_counts_what_is_admitted(any_spec, data, watermark):
    placement, size, tokens = data.draw(planned(data.draw(any_spec)))
    new = data.draw(st.integers(1, tokens))
    if placement.layout.slot_bytes and not size.slots:
        assert requests_that_fit(placement, size, tokens, new, watermark) == 0
        return
    memory = memory_of(placement, size, watermark)
    requests = (Request(n, tokens - new, new, generated=new) for n in count())
    admitted = next(r.id for r in requests if memory.admit(r, alone=r.id == 0) is not None)
    assert requests_that_fit(placement, size, tokens, new, watermark) == admitted


@settings(deadline=None)
@given(data=st.data(), watermark=watermarks)
def test_for_every_kind_of_layer_the_planner_counts_what_runs(any_spec, data, watermark):
    placement, size, tokens = data.draw(planned(data.draw(any_spec)))
    # All prompts in one step, the largest that there can be.
    placement = replace(placement, in_flight=placement.max_length)
    known = tokens if placement.policy == "paged" else tokens + 1
    fitting = requests_that_fit(placement, size, known, 1, watermark)
    if placement.layout.slot_bytes and not size.slots:
        assert fitting == 0
        return
    limit = fitting + 1
    config = SchedulerConfig(placement.max_length, limit * tokens, limit, checked=True)
    scheduler = Scheduler(memory_of(placement, size, watermark), config)
    if fitting == 0:
        with pytest.raises(RequestRejected):
            scheduler.submit(tokens, 1)
        return
    for _ in range(limit):
        scheduler.submit(tokens, 1)
    assert len(scheduler.schedule().admitted) == fitting
    assert scheduler.refusal is not None


@settings(deadline=None)
@given(data=st.data(), budget=st.integers(1, 2_000_000))
def test_a_budget_divided_for_requests_holds_as_many_of_them(any_spec, data, budget):
    layout = KVLayout.of(data.draw(any_spec), "bf16", data.draw(st.integers(1, 20)))
    tokens, in_flight = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 120))
    size = layout.pool_in(budget, tokens, in_flight)
    placement = Placement("paged", layout, 120, in_flight)
    one = layout.held_bytes(tokens, in_flight)
    assert requests_that_fit(placement, size, tokens, 1, 0.0) == budget // one


def test_unknown_policies_are_refused():
    with pytest.raises(
        KvhouseError, match="unknown policy 'slab': choose one of contiguous-max, contiguous-pow2"
    ):
        get_policy("slab")
