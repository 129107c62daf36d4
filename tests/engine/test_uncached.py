"""Without a KV cache the answers are the same, and the pool is never touched."""

from __future__ import annotations

import pytest
import torch

from kvhouse.engine import SamplingParams
from kvhouse.errors import KvhouseError
from kvhouse.replayer.tiering import Tiering


@pytest.mark.parametrize("budget", [3, 64])
def test_answers_are_those_with_a_cache(tiny, budget):
    prompts = [[5, 6, 7], list(range(3, 30)), [9]]
    sampling = SamplingParams(ignore_eos=True)
    wanted = tiny().generate(prompts, 12, sampling)
    engine = tiny(kv_cache=False, token_budget=budget)
    before = [engine.kv.read_block(block) for block in range(engine.kv.size.blocks)]
    got = engine.generate(prompts, 12, sampling)
    assert [c.token_ids for c in got] == [c.token_ids for c in wanted]
    after = [engine.kv.read_block(block) for block in range(engine.kv.size.blocks)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("options", [{"prefix_cache": True}, {"tiering": Tiering(2**20, 1e9)}])
def test_there_is_nothing_to_share_or_store(tiny, options):
    with pytest.raises(KvhouseError, match="without a KV cache there is nothing to share"):
        tiny(kv_cache=False, **options)
