"""Token for token, the engine answers as transformers does, whatever happens to the memory."""

from __future__ import annotations

import pytest

from kvhouse.engine import Engine, EngineConfig

BLOCK_BYTES = 30 * 2 * 3 * 64 * 16 * 4  # layers, K and V, KV heads, head_dim, tokens, float32


def answers(loaded, prompts, new_tokens, **config) -> tuple[Engine, list[list[int]], int]:
    """Serve the prompts, three more at every second step; also count the preemptions."""
    engine = Engine(loaded, EngineConfig(max_length=512, checked=True, **config))
    coming = list(enumerate(prompts))
    index, got, preemptions, step = {}, {}, 0, 0
    while coming or engine.has_work:
        if step % 2 == 0:
            for number, prompt in coming[:3]:
                index[engine.submit(prompt, new_tokens)] = number
            del coming[:3]
        requests = [*engine.scheduler.waiting, *engine.scheduler.running]
        for completion in engine.step().completions:
            got[index[completion.request]] = list(completion.token_ids)
            preemptions += next(r.preemptions for r in requests if r.id == completion.request)
        step += 1
    assert engine.scheduler.memory.free_blocks == engine.scheduler.memory.total_blocks
    assert engine.executor.requests == ()
    return engine, [got[number] for number in range(len(prompts))], preemptions


@pytest.mark.parametrize(
    ("config", "preempts"),
    [
        pytest.param({"policy": "paged", "kv_memory": 400 * BLOCK_BYTES}, False, id="paged"),
        pytest.param(
            {"policy": "contiguous", "kv_memory": 8 * 32 * BLOCK_BYTES}, False, id="contiguous"
        ),
        pytest.param(
            {
                "policy": "paged",
                "kv_memory": 40 * BLOCK_BYTES,
                "watermark": 0.0,
                "token_budget": 100,
            },
            True,
            id="preempting-and-chunked",
        ),
    ],
)
def test_same_tokens_as_transformers(smollm2, config, preempts):
    _, got, preemptions = answers(smollm2.loaded, smollm2.prompts, smollm2.new_tokens, **config)
    assert got == smollm2.answers
    assert (preemptions > 0) == preempts


def test_the_pool_has_the_layouts_bytes(smollm2):
    engine = Engine(smollm2.loaded, EngineConfig(kv_memory=10 * BLOCK_BYTES + 999, max_length=64))
    assert engine.kv.nbytes == 10 * BLOCK_BYTES == engine.scheduler.memory.total_bytes
