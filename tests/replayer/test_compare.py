"""Several policies on the same arrivals."""

import pytest

from kvhouse import devices, spec
from kvhouse.errors import KvhouseError
from kvhouse.replayer import SLO, Setup, read_trace, replay
from kvhouse.replayer.compare import compare, variants

TRACE = read_trace("azure-conv-2023", limit=40, max_length=2048)
MODEL, DEVICE = spec.load("llama-2-7b"), devices.get("a100-80g")
SETUP = Setup(TRACE, MODEL, DEVICE, kv_blocks=600, max_length=2048, as_backlog=True)
FOUR = ["contiguous-max", "contiguous-pow2", "contiguous-oracle", "paged"]


def shown(setups):
    return [(setup.policy, setup.prefix_cache) for setup in setups]


def test_all_four_by_default_and_paged_twice_with_a_prefix_cache():
    assert shown(variants(SETUP)) == [(policy, False) for policy in FOUR]
    sharing = Setup(TRACE, MODEL, DEVICE, prefix_cache=True)
    assert shown(variants(sharing)) == [*((p, False) for p in FOUR), ("paged", True)]
    assert shown(variants(sharing, ["paged"])) == [("paged", False), ("paged", True)]


@pytest.mark.parametrize("policies", [[], ["paged", "paged"], ["contiguous", "contiguous-max"]])
def test_policies_that_are_no_comparison(policies):
    with pytest.raises(KvhouseError, match="give different ones"):
        variants(SETUP, policies)


def test_a_prefix_cache_without_paged():
    with pytest.raises(KvhouseError, match="goes with paged"):
        variants(Setup(TRACE, MODEL, DEVICE, prefix_cache=True), ["contiguous-max"])


def test_each_is_what_a_replay_of_its_own_gives():
    ended = []
    results = compare(variants(SETUP), slo=SLO(first_token=2.0), timeline=4, on_ended=ended.append)
    assert len(ended) == 4 * 40
    for policy, result in zip(FOUR, results, strict=True):
        alone = replay(
            TRACE, MODEL, DEVICE, kv_blocks=600, max_length=2048, as_backlog=True, policy=policy,
            slo=SLO(first_token=2.0), timeline=4,
        )  # fmt: skip
        assert result == alone
    peaks = [result.running.peak for result in results]
    assert peaks == sorted(peaks)
    assert peaks[0] == 600 // (2048 // 16) == 4
    assert peaks[-1] > 2 * peaks[0]
