"""Remedies against figures worked out by hand, and the shared prefix against a naive pool.

Llama-2-7B in fp16 keeps 2 x 32 x 4096 x 2 = 524,288 bytes of a token. Of 24 GiB, 90 % are usable
and the weights leave 9,715,992,166 bytes: 1,158 blocks of 16 tokens.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse import devices, spec
from kvhouse.core.policy import POLICIES
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.planner import plan
from kvhouse.planner.case import Case, rank_of
from kvhouse.planner.cases import case_for
from kvhouse.planner.remedies import offload_break_even, remedies
from kvhouse.planner.remedies.bigger import bigger_cards
from kvhouse.spec.layers import SlidingAttention
from kvhouse.spec.model import FullAttention, ModelSpec

GIB = 2**30
SEVEN_B = spec.load("llama-2-7b")
TOKEN = 524_288
BLOCK = 16 * TOKEN


@pytest.fixture
def case(card):
    return Case(SEVEN_B, card, 500, 200, 4096, policy="contiguous-max", kv_format="fp16")


def by_name(found):
    return {remedy.name: remedy for remedy in found.ranked}


def test_narrower_kv_counts_its_scales(case):
    found = by_name(remedies(case))
    # A vector of 128 elements takes 256 bytes; in int8 128 and a scale of 2; in int4 64 and 4 x 2.
    for name, vector in (("int8 KV", 130), ("fp8 KV", 130), ("int4 KV", 72)):
        narrow = TOKEN * vector // 256
        assert found[name].bytes_saved == 4096 * (TOKEN - narrow)
        assert found[name].requests_before == 4
        assert found[name].requests_after == 9_715_992_166 // (16 * narrow) // 256
    assert (found["int8 KV"].gained, found["int4 KV"].gained) == (4, 12)
    assert "6.2322 -> 6.2344" in found["int8 KV"].accuracy
    assert found["fp8 KV"].accuracy.startswith("unknown")


def test_paging_prefix_and_a_shorter_limit(case):
    found = by_name(remedies(case, shared_tokens=170, lengths=[300] * 98 + [1200, 3000]))
    # 57 of the 1,158 blocks stay free; 500 tokens take 32, of which 10 are full of the prefix.
    assert found["paging"].requests_after == (1158 - 57) // 32 == 34
    assert found["paging"].bytes_saved == (256 - 32) * BLOCK
    assert found["prefix sharing"].requests_after == (1158 - 57 - 10) // (32 - 10) == 49
    assert found["prefix sharing"].bytes_saved == (256 - 22) * BLOCK
    assert found["shorter max_length"].requests_after == 1158 // 75 == 15
    assert found["shorter max_length"].change == "allow 1,200 tokens instead of 4,096"
    assert found["paging"].accuracy.startswith("unchanged")


def test_ranks_hold_half_and_pay_for_the_link(case):
    two = by_name(remedies(case))["tensor parallel 2"]
    left = int(24 * GIB * 0.9) - 6_738_415_616
    assert two.requests_after == left // (BLOCK // 2) // 256 == 15
    assert two.bytes_saved == 256 * BLOCK // 2
    # Half the matrices; 15 requests' KV read, and a token of each written.
    moved = 6_607_077_376 + 15 * 501 * TOKEN // 2
    # 2 sums in each of 32 layers, of 15 rows of 4096 float16, each sent once by either rank.
    link = 2 * 32 * 15 * 4096 * 2 / 25e9
    assert two.tokens_per_second_after == pytest.approx(15 / (moved / 1e12 + link))
    assert two.basis == "estimated"


def test_ranked_by_requests_then_by_speed(case):
    found = remedies(case, shared_tokens=170)
    keys = [(r.gained, r.tokens_per_second_after) for r in found.ranked]
    assert keys == sorted(keys, reverse=True)
    assert found.combination.name == "prefix sharing + int4 KV"
    narrow = 16 * TOKEN * 72 // 256
    blocks = 9_715_992_166 // narrow
    assert found.combination.requests_after == (blocks - blocks * 5 // 100 - 10) // 22
    assert "KIVI" in found.combination.accuracy
    assert not found.combination.hardware


def test_two_that_add_nothing_to_each_other_are_no_combination(case):
    narrow = replace(case, kv_format="int4", weight_dtype="int4")
    found = remedies(narrow, shorter=1000)
    assert {"paging", "shorter max_length"} <= set(by_name(found))
    assert found.combination is None


def test_what_does_not_apply_says_why(case):
    grouped = Case(spec.load("llama-3.1-8b"), case.device, 1000, 200, 8192, kv_format="int4")
    found = remedies(grouped)
    reasons = {one.name: one.reason for one in found.excluded}
    assert reasons["paging"] == "the pool is paged already"
    assert reasons["prefix sharing"].endswith("give shared_tokens")
    assert reasons["shorter max_length"].startswith("paged reserves nothing for it")
    assert reasons["int4 KV"] == "takes no fewer bytes than int4"
    assert found.model_choice is None
    choice = remedies(case).model_choice
    assert choice.bytes_saved == 256 * BLOCK * 3 // 4
    assert choice.basis == "estimated"


def test_weights_that_do_not_fit_are_helped_by_what_makes_room(card):
    found = remedies(Case(spec.load("llama-2-13b"), card, 1000, 200, 4096, kv_format="fp16"))
    assert found.requests == 0
    assert found.tokens_per_second == 0
    assert {"int8 weights", "int4 weights", "tensor parallel 2"} <= set(by_name(found))
    assert all(remedy.gained > 0 for remedy in found.ranked)
    assert ("int8 KV", "alone it lets not one request in") in {
        (one.name, one.reason) for one in found.excluded
    }
    assert "weights" in found.combination.name


def test_a_state_cannot_be_shared_and_measured_hits_are_estimates(case):
    found = by_name(remedies(case, hit_share=0.5))
    assert found["prefix sharing"].basis == "estimated"
    assert found["prefix sharing"].requests_after == (1158 - 57 - 9) // (32 - 9)


@given(
    st.integers(1, 40), st.integers(2, 300), st.integers(0, 299), st.integers(0, 2000),
    st.sampled_from([0.0, 0.05, 0.5]),
)  # fmt: skip
@settings(deadline=None)
def test_a_shared_prefix_against_a_pool_that_counts_blocks(size, tokens, shared, blocks, watermark):
    layer = FullAttention(1, 1, 8, 8)
    model = ModelSpec("m", "M", (layer,), 8, 8, 4096, 100, 64, "float16")
    shared = min(shared, tokens - 1)
    device = Device("d", "", 2**40, 1e12, {"float16": 1e12}, "datasheet", "")
    memory = max(1, blocks * size * 32)
    case = Case(
        model, device, tokens, 1, 4096, kv_format="fp16", block_size=size, watermark=watermark,
        kv_memory=memory, shared_tokens=shared,
    )  # fmt: skip
    # The last token of a prompt is computed by every request, so its block is never shared.
    reusable = min(shared, tokens - 1 - 1)
    held, total = set(), memory // (size * 32)
    count = 0
    while True:
        needed = {
            ("all", at) if (at + 1) * size <= reusable else (count, at)
            for at in range(-(-tokens // size))
        }
        kept_free = int(total * watermark) if count else 0
        if len(held | needed) + kept_free > total:
            break
        held |= needed
        count += 1
    assert case.outcome().requests == count


layers = st.one_of(
    st.builds(FullAttention, st.just(8), st.sampled_from([1, 2, 8]), st.just(64), st.just(64)),
    st.builds(
        SlidingAttention, st.just(8), st.sampled_from([2, 8]), st.just(64), st.just(64),
        st.sampled_from([16, 100, 1000]),
    ),
)  # fmt: skip


@st.composite
def cases(draw):
    stack = tuple(draw(st.lists(layers, min_size=1, max_size=4))) * draw(st.integers(1, 3))
    model = ModelSpec("m", "M", stack, 512, 1000, 4096, 10**7, 9 * 10**6, "float16")
    device = Device(
        "d", "", draw(st.integers(3 * 10**7, 10**9)), 1e11, {"float16": 1e13}, "datasheet", "",
        host_link=1e9,
    )  # fmt: skip
    context = draw(st.integers(2, 3000))
    return Case(
        model, device, context, draw(st.integers(1, context - 1)), draw(st.integers(3000, 4096)),
        policy=draw(st.sampled_from(POLICIES)), kv_format=draw(st.sampled_from(["fp16", "fp32"])),
        token_budget=draw(st.sampled_from([64, 2048])),
    )  # fmt: skip


@given(cases(), st.integers(0, 3000))
@settings(max_examples=60, deadline=None)
def test_no_remedy_loses_requests_but_where_it_says_so(case, shared):
    shared = min(shared, case.context - case.new_tokens)
    found = remedies(case, shared_tokens=shared, shorter=case.context)
    for remedy in found.ranked:
        assert remedy.gained == remedy.requests_after - remedy.requests_before
        if remedy.gained < 0:
            assert remedy.name in ("paging", "prefix sharing")
            assert case.policy != "paged"
            assert "can lose requests" in remedy.assumption
    if found.combination:
        assert found.combination.requests_after > case.outcome().requests


@given(cases())
@settings(max_examples=40, deadline=None)
def test_a_case_is_the_plan_of_its_policy(case):
    result = plan(
        case.spec, case.device, context=case.context, new_tokens=case.new_tokens,
        max_length=case.max_length, kv_format=case.kv_format, token_budget=case.token_budget,
    )  # fmt: skip
    fit = next(fit for fit in result.fits if fit.policy == case.policy)
    outcome = case.outcome()
    assert (outcome.requests, outcome.held_bytes) == (fit.requests, fit.held_bytes)
    assert outcome.pool_bytes == result.pool_bytes
    paged = result.fits[-1].requests
    if fit.requests == paged > 0:
        speed = next(one for one in result.speeds if one.batch == paged)
        assert outcome.tokens_per_second == speed.tokens_per_second


def test_ranks_of_a_model_with_a_large_vocabulary_compute_their_share_of_it(card):
    small = spec.load("smollm2")
    rank = rank_of(small, 3)
    whole, share = (
        Roofline(model, KVLayout.of(model), card, "float16").prefill(1000).matmul_flops
        for model in (small, rank)
    )
    assert share == pytest.approx(whole / 3, rel=1e-3)


def test_bigger_cards_of_the_same_vendor_come_first(case):
    def other(name, gib, vendor="Maker", bandwidth=1e12):
        return replace(
            case.device, name=name, memory_bytes=gib * GIB, vendor=vendor, bandwidth=bandwidth
        )

    table = [
        other("other-28", 28, "Other"), other("same", 24), other("slow-40", 40, bandwidth=1e10),
        other("big-80", 80), other("mid-48", 48), other("fast-48", 48, bandwidth=2e12),
        other("huge-96", 96),
    ]  # fmt: skip
    assert [one.device.name for one in bigger_cards(case, table)] == ["fast-48", "big-80"]
    assert [one.device.name for one in bigger_cards(case, table[:3])] == ["other-28"]
    given_memory = replace(case, kv_memory=8 * GIB)
    assert bigger_cards(given_memory, table[3:4])[0].kv_memory == 8 * GIB + int(56 * GIB * 0.9)


def test_the_device_table_offers_a_bigger_card():
    case = Case(SEVEN_B, devices.get("rtx-4090"), 500, 200, 4096, kv_format="fp16")
    found = [one for one in remedies(case).ranked if one.name.startswith("bigger card: ")]
    assert found
    assert all(one.hardware and one.gained > 0 for one in found)


@pytest.mark.parametrize("latency", [0.0, 0.004])
def test_loading_wins_while_the_weights_are_read_and_again_where_attention_grows(card, latency):
    long = replace(SEVEN_B, max_length=2**18)
    roofline = Roofline(long, KVLayout.of(long, "fp16"), card)
    found = offload_break_even(roofline, 2e9, 2**18, latency)

    def wins(tokens):
        matrices = 6_607_077_376 - 32_000 * 4096
        head = 32_000 * 4096
        flops = 2 * matrices * tokens + 2 * head + 32 * 4 * 4096 * tokens * (tokens + 1) // 2
        reading = (2 * (matrices + head) + tokens * TOKEN) / 1e12
        return tokens * TOKEN / 2e9 + latency < max(flops / 1e14, reading)

    (first, last), (again, end) = found.ranges
    assert (first, end) == (1, 2**18)
    assert wins(last)
    assert not wins(last + 1)
    assert wins(again)
    assert not wins(again - 1)
    assert 20 < last < 60
    assert 40_000 < again < 60_000
    assert found.text.startswith("faster than recomputing at 1 to ")


def test_a_slow_link_never_wins_and_a_fast_one_always(card):
    roofline = Roofline(SEVEN_B, KVLayout.of(SEVEN_B, "fp16"), card)
    never = offload_break_even(roofline, 1e6, 4096)
    assert never.ranges == ()
    assert never.text == "never faster than recomputing up to 4,096 tokens"
    assert offload_break_even(roofline, 1e11, 4096).ranges == ((1, 4096),)


def test_unknown_links_and_rates_are_said(case):
    bare = replace(case, device=replace(case.device, host_link=None))
    found = remedies(bare)
    assert found.offload is None
    assert (
        "no known bandwidth to the host's memory"
        in {one.name: one.reason for one in found.excluded}["offload"]
    )
    assert "not counted" in by_name(found)["tensor parallel 2"].latency
    mute = replace(case, device=replace(case.device, flops={}))
    reasons = {one.name: one.reason for one in remedies(mute).excluded}
    assert "FLOP/s are not known" in reasons["offload"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shared_tokens": 1, "hit_share": 0.5}, "say the same thing"),
        ({"hit_share": 1.5}, "hit_share 1.5"),
        ({"lengths": [0]}, "at least 1 token"),
    ],
)
def test_impossible_options_are_named(case, options, reason):
    with pytest.raises(KvhouseError, match=reason):
        remedies(case, **options)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"context": 5000}, "context 5000"),
        ({"policy": "slab"}, "unknown policy 'slab'"),
        (
            {"policy": "paged", "shared_tokens": 301},
            "301 shared tokens: from 0 to the prompt's 300",
        ),
        ({"shared_tokens": 10}, "contiguous-max cannot share a prefix"),
    ],
)
def test_impossible_cases_are_named(case, fields, reason):
    with pytest.raises(KvhouseError, match=reason):
        replace(case, **fields)


def test_a_bigger_card_gets_what_is_left_beside_the_weights_it_lacked_room_for():
    """8 GiB of KV do not fit beside 24.2 GiB of weights on 24 GiB; on 40 GiB there is less."""
    case = case_for("llama-2-13b", "a10-24g", kv_memory=8 * 2**30, context=1500, max_length=4096)
    (card,) = [one for one in remedies(case).ranked if one.name == "bigger card: a100-40g"]
    alone = case_for("llama-2-13b", "a100-40g", context=1500, max_length=4096)
    assert card.requests_after == alone.outcome().requests


def test_what_makes_a_pool_fit_goes_before_what_gains_more_but_does_not():
    """24.2 GiB of weights and 8 GiB of KV on 90 % of 22.5 GiB: narrower KV makes no room."""
    case = case_for("llama-2-13b", "a10-24g", kv_memory=8 * GIB, context=1500, max_length=4096)
    usable = case.device.usable_bytes * 9 // 10
    assert case.budget().missing == 26_031_728_640 + 8 * GIB - usable > 0
    found = remedies(case)
    kv_only = {one.name for one in found.ranked if one.name.endswith(" KV")}
    assert kv_only == {"int4 KV", "int8 KV", "fp8 KV"}
    for one in found.ranked:
        assert (one.missing_bytes == case.budget().missing) == (one.name in kv_only)
    fits = [one.missing_bytes == 0 for one in found.ranked]
    assert fits == sorted(fits, reverse=True)
    names = [one.name for one in found.ranked]
    assert names.index("int4 weights") < names.index("int4 KV")
    # 13 billion parameters in a byte each still leave too little.
    assert by_name(found)["int8 weights"].missing_bytes > 0
    assert found.combination.name == "int4 weights + int4 KV"
    assert found.combination.missing_bytes == 0
    assert found.combination.requests_after == by_name(found)["int4 KV"].requests_after


def test_where_it_fits_nothing_is_missing(case):
    found = remedies(replace(case, kv_memory=4 * GIB))
    assert {one.missing_bytes for one in (*found.ranked, found.combination)} == {0}
