"""Gemma-3-270M for real: five sliding layers to a full one, one KV head of 256."""

from __future__ import annotations

import pytest
import torch

from kvhouse.engine import Engine, EngineConfig
from kvhouse.engine.load import load_model

PROMPTS = (
    "The capital of France is",
    "A list of three fruits: apples,",
    # Longer than a window of 512 tokens.
    "The lighthouse keeper counted the ships and wrote their names into a book. " * 42 + "Then",
)
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def answers():
    """The model, the prompts' ids, and what transformers' own ``generate`` adds to each."""
    loaded = load_model("gemma-3-270m")
    loaded.model.set_attn_implementation("sdpa")  # an engine of another test may have had it
    ids = [loaded.tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    greedy = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    whole = [loaded.model.generate(torch.tensor([each]), **greedy)[0].tolist() for each in ids]
    return loaded, ids, [each[len(known) :] for each, known in zip(whole, ids, strict=True)]


@pytest.mark.parametrize("kernel", ["numba", "reference"])
def test_greedy_is_transformers_own(answers, kernel):
    loaded, ids, wanted = answers
    assert [len(each) > 512 for each in ids] == [False, False, True]
    config = EngineConfig(2**26, kernel=kernel, token_budget=200, checked=True)
    got = Engine(loaded, config).generate(ids, NEW_TOKENS)
    assert [list(completion.token_ids) for completion in got] == wanted


def test_a_window_holds_fewer_bytes_than_all_layers_in_full(answers):
    """15 of 18 layers keep 512 tokens: of 40 blocks of 16 tokens, those layers let some go."""
    loaded, ids, _ = answers
    engine = Engine(loaded, EngineConfig(2**26, token_budget=64, checked=True))
    answers_to = engine.ask(ids[2], NEW_TOKENS)
    most = 0
    while not answers_to.done:
        engine.step()
        most = max(most, engine.held_bytes)
    in_full = -(-(len(ids[2]) + NEW_TOKENS) // 16) * 16 * 18 * 2 * 256 * 4
    window = (512 + 64 + 2 * 16) * 15 * 2 * 256 * 4
    assert most < in_full
    assert most <= window + in_full * 3 // 18 + engine.kv.layout.block_bytes * 4
