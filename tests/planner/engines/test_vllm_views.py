"""vLLM's views hold together for every model, and agree with models written differently."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.planner.engines import view
from kvhouse.planner.engines.version import LATEST, Version
from kvhouse.planner.engines.vllm_groups import group_pages
from kvhouse.planner.engines.vllm_pages import Page
from kvhouse.planner.engines.vllm_v0 import kv_budget
from kvhouse.spec import catalogue, load

GIB = 2**30
VERSIONS = ["0.8.5", "0.11.0", "0.13.0", "0.19.0", "0.20.1", "0.24.0", "0.33.0", None]


def paged(name, **options):
    """The view of a model, or None where vLLM's rules refuse it."""
    try:
        return view("vllm", load(name), max_num_batched_tokens=2048, **options)
    except UnsupportedModel:
        return None


REFUSED = {name for name in catalogue() if paged(name, max_model_len=1024) is None}


def test_only_compressed_caches_are_refused():
    # DeepSeek-V4's packed layout, and nothing else of the catalogue.
    assert {name for name in REFUSED if not name.startswith("deepseek-v4")} == set()


models = st.sampled_from(sorted(set(catalogue()) - REFUSED))


@given(models, st.sampled_from(VERSIONS), st.integers(1, 4096), st.integers(0, 512))
@settings(max_examples=60, deadline=None)
def test_more_tokens_never_need_less(name, version, tokens, more):
    seen = paged(name, version=version, max_model_len=1024)
    assume(seen is not None)
    assert seen.needed_bytes(tokens) <= seen.needed_bytes(tokens + more)
    assert seen.needed_bytes(tokens) > 0


@given(models, st.sampled_from([1, 2, 4]), st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_more_ranks_never_hold_less(name, tp, gib):
    one = paged(name, max_model_len=1024, available_bytes=gib * GIB)
    more = paged(name, max_model_len=1024, available_bytes=gib * GIB, tp=tp)
    assume(more is not None)
    assert more.needed_bytes() <= one.needed_bytes()
    assert more.needed_bytes() * tp >= one.needed_bytes() or more.block_size != one.block_size


@given(models, st.sampled_from(VERSIONS), st.integers(2**28, 2**36))
@settings(max_examples=60, deadline=None)
def test_blocks_fill_the_memory(name, version, available):
    seen = paged(name, version=version, max_model_len=1024, available_bytes=available)
    assume(seen is not None)
    assert seen.blocks * seen.pool_block_bytes <= available
    assert (seen.blocks + 1) * seen.pool_block_bytes > available


@given(models, st.sampled_from(["0.16.0", "0.19.0", "0.24.0", None]), st.integers(2**28, 2**36))
@settings(max_examples=60, deadline=None)
def test_the_estimate_is_the_longest_that_fits(name, version, available):
    seen = paged(name, version=version, max_model_len=1024, available_bytes=available)
    assume(seen is not None)
    longest = seen.estimated_max_len
    assert longest == 0 or seen.needed_bytes(longest) <= available
    assert longest == 1024 or seen.needed_bytes(longest + 1) > available
    # One request fits the memory exactly where the pool has blocks for one.
    assert (longest == 1024) == (seen.max_concurrency >= 1)


@given(models, st.integers(0, 10**6), st.integers(1, 1024))
@settings(max_examples=60, deadline=None)
def test_concurrency_counts_blocks(name, blocks, length):
    seen = paged(name, max_model_len=length, blocks=blocks)
    assert seen.max_concurrency == Fraction(
        blocks, sum(group.blocks(length) for group in seen.groups)
    )
    assert seen.kv_tokens in (
        int(seen.max_concurrency * length),
        int(seen.max_concurrency * length) - 1,  # a float's last bit
    )
    assert seen.needed_bytes(length) == sum(size for _, size in seen.reserved_bytes(length))


def naive_groups(counts, version):
    """Group sizes by trying every size, as the rule is told: the rarest kind's, or the commonest's
    where that is below 1.25 times it, 1.5 times from 0.19 on."""
    least, most = sorted(counts)[0], sorted(counts)[-1]
    limit = 1.5 if Version.of(version) >= Version((0, 19, 0)) else 1.25
    size = most if most < limit * least else least
    return size, sum(1 + (count - 1) // size for count in counts)


@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=3),
    st.sampled_from(["0.11.0", "0.19.0", None]),
)
def test_groups_are_of_one_size(counts, version):
    kinds = ["full", "window", "chunk"]
    pages = [
        Page(kind, kind, 16, 4096, "", reach=0 if kind == "full" else 64)
        for kind, count in zip(kinds, counts, strict=False)
        for _ in range(count)
    ]
    grouping = group_pages("model", pages, Version.of(version), hybrid=True)
    assert (grouping.size, len(grouping.groups)) == naive_groups(counts, version)
    assert sorted(one for group in grouping.groups for one in group.members) == list(
        range(len(pages))
    )
    sizes = [len(group.members) for group in grouping.groups]
    assert max(sizes) == grouping.size


def test_layers_are_dealt_out_like_vllm_does():
    # vLLM's own example: full.0-1 and sw.0-2 make (full.0, full.1), (sw.0, sw.2), (sw.1, padding).
    full = Page("full", "full", 16, 64, "")
    window = Page("window", "window", 16, 64, "", reach=32)
    grouping = group_pages("model", [full, full, window, window, window], Version((0, 11, 0)), True)
    assert [group.members for group in grouping.groups] == [(0, 1), (2, 4), (3,)]
    assert grouping.pool_block_bytes() == 2 * 64


def test_gemma_3_padding():
    # 52 sliding and 10 full layers: groups of 10, with 8 layers of padding among those that slide.
    seen = paged("gemma-3-27b", version="0.19", max_model_len=8192)
    assert sum(group.padding for group in seen.groups) == 8
    assert {group.layers + group.padding for group in seen.groups} == {10}
    assert "Add 8 padding layers, may waste at most 15.38% KV cache memory" in seen.log_lines


def test_sparse_latents_in_fp8():
    # 656 B of fp8_ds_mla and 132 B of the indexer, each token and layer, on every rank.
    seen = view("vllm", load("deepseek-v3.2"), kv_dtype="fp8", tp=8, max_model_len=4096)
    assert seen.kv_bytes_per_token == 61 * (656 + 132)


def test_unequal_pages_get_larger_blocks():
    # vLLM issue 43308: gemma-4-31b, pages of 262,144 B, blocks of 16 and of 32, six groups of ten.
    seen = paged("gemma-4-31b-nvfp4", version="0.20", max_model_len=8192)
    assert seen.pool_block_bytes == 10 * 262_144
    assert {(group.name, group.block_size) for group in seen.groups} == {
        ("sliding window", 16),
        ("full attention", 32),
    }


@pytest.mark.parametrize(
    ("version", "batches", "in_flight"), [("0.24", None, 2048), (None, None, 4096), (None, 3, 6144)]
)
def test_tokens_in_flight(version, batches, in_flight):
    seen = paged("gpt-oss-20b", version=version, concurrent_batches=batches, max_model_len=2**17)
    window = next(group for group in seen.groups if group.name == "sliding window")
    assert window.blocks(2**17) == -(-(127 + in_flight) // 16) + 1


def test_stages_share_the_fewest_blocks():
    spec = load("llama-3-70b")
    block = 16 * 8 * 256 * 2
    for stages, layers in ((1, 80), (3, 27), (4, 20)):  # 80 layers in three: 27, 27 and 26
        seen = view("vllm", spec, available_bytes=GIB, max_model_len=4096, pp=stages)
        assert seen.blocks == GIB // (layers * block)


def test_budget():
    # vLLM PR 10511: 79.22 GiB at 0.9, of which 14.96, 1.79 and 1.26 are not KV: 53.29 GiB.
    budget, rest = kv_budget(79.22, 0.9, [14.96, 1.79, 1.26])
    assert (round(budget, 2), round(rest, 2)) == (71.3, 53.29)
    with pytest.raises(KvhouseError):
        kv_budget(80, 1.5, [])
    given_memory = view(
        "vllm",
        load("llama-3-8b"),
        total_bytes=80 * GIB,
        used_bytes=20 * GIB,
        utilization=0.5,
        max_model_len=4096,
    )
    assert given_memory.available_bytes == 20 * GIB


def test_v0_keeps_windows_in_full():
    seen = view("vllm-v0", load("gemma-3-27b"), version="0.6", max_model_len=4096, blocks=100)
    assert seen.kv_bytes_per_token == 62 * 16 * 2 * 128 * 2
    assert seen.figure("cpu_blocks") == 4 * GIB // seen.pool_block_bytes
    with pytest.raises(KvhouseError, match="prints no 'none'"):
        seen.figure("none")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kv_dtype": "q8_0"}, "no KV dtype 'q8_0'"),
        ({"tp": 0}, "tp 0: give a whole number from 1"),
        ({"version": "new"}, "engine version 'new'"),
        ({"dtype": "int4"}, "dtype 'int4'"),
        ({"mamba_cache_mode": "some"}, "none, align or all"),
        ({"state_dtype": "fp4"}, "state_dtype 'fp4'"),
        ({"max_model_len": 2**40}, "takes 1 to"),
        ({"colour": "red"}, "has no option 'colour'"),
    ],
)
def test_refusals(options, reason):
    with pytest.raises(KvhouseError, match=reason):
        view("vllm", load("llama-3-8b"), **options)


def test_windows_need_a_batch_size():
    with pytest.raises(KvhouseError, match="give max_num_batched_tokens"):
        view("vllm", load("gemma-3-27b"), max_model_len=4096)
    large, small = (
        view(
            "vllm", load("gemma-3-27b"), max_model_len=65536, version="0.19", total_bytes=size * GIB
        )
        for size in (80, 24)
    )
    assert large.needed_bytes() > small.needed_bytes()


def test_flags_start_the_engine_with_what_fits():
    spec = load("llama-3-70b")
    seen = view("vllm", spec, tp=8, available_bytes=GIB // 16, kv_dtype="fp8")
    assert seen.estimated_max_len < spec.max_length
    assert seen.flags == (
        f"--max-model-len {seen.estimated_max_len}",
        "--tensor-parallel-size 8",
        "--kv-cache-dtype fp8",
        f"--kv-cache-memory-bytes {GIB // 16}",
    )
    again = view(
        "vllm",
        spec,
        tp=8,
        available_bytes=GIB // 16,
        kv_dtype="fp8",
        max_model_len=seen.estimated_max_len,
    )
    assert again.needed_bytes() <= GIB // 16
    assert again.max_concurrency >= 1


def test_unknown_engine():
    with pytest.raises(KvhouseError, match="unknown engine 'vlm'"):
        view("vlm", load("llama-3-8b"))


def test_versions_compare():
    assert Version.of("0.9.2") < Version.of("v0.11") < Version.of(None) == LATEST
    assert str(Version.of("0.20.1")) == "0.20.1"
