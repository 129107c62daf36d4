"""What a trace says of contents: against the tokens themselves, and what requests then find."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.keys import OwnKeys, TokenKeys
from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.core.step import Sampled, StepResult
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer.prefixes import keys_of
from kvhouse.replayer.scenario import Scenario
from kvhouse.replayer.trace_request import TraceRequest
from kvhouse.replayer.traces import Trace
from kvhouse.spec.model import FullAttention, ModelSpec

SPEC = ModelSpec("toy", "Toy", (FullAttention(1, 1, 1, 1),), 1, 10, 200, 100, 50, "float32")
TEXTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=8)


class Seconds:
    """Takes one second for each step."""

    timing = "modelled"

    def execute(self, plan):
        return StepResult(1.0, tuple(Sampled(r.request) for r in plan.rows if r.samples))


def named(texts, id_tokens, apart=0.0):
    """Requests whose ids number the distinct beginnings of their prompts, as Mooncake's do."""
    numbers = {}
    requests = []
    for place, text in enumerate(texts):
        ends = range(id_tokens, len(text) + id_tokens, id_tokens)
        ids = tuple(numbers.setdefault(tuple(text[:end]), len(numbers)) for end in ends)
        requests.append(
            TraceRequest(place * apart, len(text), 2, hash_ids=ids, hash_block=id_tokens)
        )
    return requests


def keys(request, block_size, blocks):
    found = keys_of(request, block_size)
    return [found.key(index) if found else None for index in range(blocks)]


@given(TEXTS, st.integers(1, 7), st.integers(1, 7))
def test_equal_keys_mean_equal_tokens(texts, id_tokens, block_size):
    seen = {}
    for text, request in zip(texts, named(texts, id_tokens), strict=True):
        truth = TokenKeys(text, block_size)
        whole = len(text) // block_size
        given = keys(request, block_size, whole + 1)
        assert given[whole] is None  # never a block that the prompt does not fill
        for index in range(whole):
            assert seen.setdefault(given[index], truth.key(index)) == truth.key(index)


@given(TEXTS, st.integers(1, 4), st.integers(1, 4))
def test_equal_tokens_mean_equal_keys_where_ids_end_with_blocks(texts, id_tokens, factor):
    """A block that ends where an id does is known by that id alone."""
    size, seen = id_tokens * factor, {}
    for text, request in zip(texts, named(texts, id_tokens), strict=True):
        truth = TokenKeys(text, size)
        for index in range(len(text) // size):
            key = keys(request, size, index + 1)[index]
            assert seen.setdefault(truth.key(index), key) == key


@given(
    st.lists(st.integers(-3, 2**60), min_size=1, max_size=9),
    st.sampled_from([1, 2, 3, 4, 8, 12, 2**15 - 1, 2**15]),
    st.sampled_from([1, 2, 3, 4, 8, 16, 2**14]),
    st.sampled_from([None, "a"]),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_many_keys_are_those_asked_for_one_by_one(ids, id_tokens, block_size, tenant, span):
    request = TraceRequest(
        0.0, len(ids) * id_tokens, 1, hash_ids=tuple(ids), hash_block=id_tokens, tenant=tenant
    )
    named = keys_of(request, block_size)
    blocks = len(ids) * id_tokens // block_size
    for found in (named, OwnKeys(7, named), OwnKeys(7)):
        one_by_one = [found.key(index) for index in range(*span)]
        if found is named:
            one_by_one = one_by_one[: max(0, blocks - span[0])]
        assert list(found.known(*span)) == one_by_one


def test_ids_of_several_lengths_and_places_never_meet():
    """Whatever length ids have: neither their keys nor those of a tenant's are another's."""
    seen = set()
    for tenant in (None, "a"):
        for id_tokens in (1, 2, 4, 512, 2**15):
            request = TraceRequest(
                0.0, 3 * id_tokens, 1, hash_ids=(0, 1, 2), hash_block=id_tokens, tenant=tenant
            )
            found = keys_of(request, 1).known(0, 3 * id_tokens)
            assert len(found) == len(set(found)) == 3 * id_tokens
            assert seen.isdisjoint(found)
            seen.update(found)


def test_ids_of_an_output_name_what_a_later_prompt_repeats():
    first = TraceRequest(0.0, 4, 4, hash_ids=(1, 2, 3, 4), hash_block=2)
    second = TraceRequest(1.0, 8, 1, hash_ids=(1, 2, 3, 4), hash_block=2)
    assert keys(first, 4, 3) == keys(second, 4, 3)
    assert keys(second, 4, 3)[1] is not None
    assert keys(second, 4, 3)[2] is None


def test_a_named_prefix_is_shared_as_far_as_both_say():
    short = TraceRequest(0.0, 30, 1, prefix_id="system", prefix_tokens=9)
    long = TraceRequest(0.0, 30, 1, prefix_id="system", prefix_tokens=17)
    other = TraceRequest(0.0, 30, 1, prefix_id="another", prefix_tokens=17)
    assert keys(short, 4, 3)[:2] == keys(long, 4, 3)[:2]
    assert keys(short, 4, 3)[2] is None
    assert not set(keys(long, 4, 4)) & set(keys(other, 4, 4))


def test_tenants_share_nothing():
    for named_by in ({"hash_ids": (1, 2), "hash_block": 4}, {"prefix_id": "a", "prefix_tokens": 8}):
        mine, yours = (TraceRequest(0.0, 8, 1, tenant=name, **named_by) for name in "my")
        assert not set(keys(mine, 4, 2)) & set(keys(yours, 4, 2))


def test_a_request_that_says_nothing_has_no_keys():
    assert keys_of(TraceRequest(0.0, 8, 1), 4) is None


def driven(requests, blocks, block_size=2, **config):
    layout = KVLayout.of(SPEC, "fp32", block_size)
    limits = SchedulerConfig(**{"max_length": 32, "checked": True, **config})
    scenario = Scenario(
        Trace("toy", requests), layout, "paged", 0, limits, 0.0, kv_blocks=blocks, prefix_cache=True
    )
    records = []
    result = scenario.drive(Seconds(), on_ended=records.append)
    return result, sorted(records, key=lambda record: record.index)


@given(TEXTS, st.integers(1, 4))
def test_one_after_the_other_finds_what_was_said_before(texts, factor):
    """Where memory is plenty and nobody waits, a set of beginnings is the whole cache."""
    size, said = 2, set()
    result, records = driven(named(texts, size * factor, apart=100.0), 400, size)
    hits = []
    for text in texts:
        found = 0
        while (found + 1) * size < len(text) and tuple(text[: (found + 1) * size]) in said:
            found += 1
        hits.append(found * size)
        said |= {tuple(text[:end]) for end in range(size, len(text) + 1, size)}
    if factor == 1:
        assert [record.found for record in records] == hits
    else:  # within an id's block, only prompts that go on alike are known to be alike
        assert all(record.found <= hit for record, hit in zip(records, hits, strict=True))
    assert result.prefix.tokens == sum(record.found for record in records)
    assert result.prefix.blocks == result.prefix.tokens // size
    assert result.prefix.requests == sum(record.found > 0 for record in records)
    assert result.computed_tokens == sum(len(text) + 1 for text in texts) - result.prefix.tokens


@given(TEXTS, st.integers(1, 3), st.integers(16, 20), st.integers(3, 40))
@settings(max_examples=60)
def test_tokens_are_conserved_when_memory_is_short(texts, id_tokens, blocks, budget):
    """``summarise`` balances computed, found and recomputed tokens to the last one.

    The longest prompt, of 24 tokens, comes to 31 with all but the last of its output: 16 blocks.
    """
    outputs = [TraceRequest(r.arrival, r.prompt_tokens, 8, r.hash_ids, r.hash_block)
               for r in named(texts * 2, id_tokens)]  # fmt: skip
    result, records = driven(outputs, blocks, token_budget=budget)
    assert result.finished == len(outputs)
    assert result.preemptions == sum(record.preemptions for record in records)
    assert result.recomputed_tokens == 0 or result.preemptions > 0


def test_contiguous_memory_shares_nothing():
    layout = KVLayout.of(SPEC, "fp32", 2)
    scenario = Scenario(
        Trace("toy", [TraceRequest(0.0, 4, 2)]),
        layout,
        "contiguous-oracle",
        0,
        SchedulerConfig(max_length=32),
        kv_blocks=20,
        prefix_cache=True,
    )
    with pytest.raises(KvhouseError, match="only paged memory can share"):
        scenario.drive(Seconds())


@pytest.mark.parametrize("blocks", [0, -3])
def test_a_pool_without_blocks(blocks):
    with pytest.raises(KvhouseError, match="a pool has at least 1"):
        driven([TraceRequest(0.0, 4, 2)], blocks)
