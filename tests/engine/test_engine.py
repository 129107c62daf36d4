"""The engine from outside: what ends a request, who gets which output, and what stays behind."""

from __future__ import annotations

import random

import pytest
import torch

from kvhouse.engine import Engine, EngineConfig, FinishReason, SamplingParams
from kvhouse.engine.load import load_model
from kvhouse.errors import KvhouseError, RequestRejected

VOCAB = 97


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))] for _ in range(count)]


def assert_idle(engine: Engine) -> None:
    memory = engine.scheduler.memory
    assert memory.free_blocks == memory.total_blocks
    assert engine.executor.requests == ()
    assert not engine.has_work
    assert not engine.scheduler.has_work


def unending(**params) -> SamplingParams:
    return SamplingParams(ignore_eos=True, **params)


def test_greedy_follows_the_model(tiny, tiny_directory):
    """Each token is the likeliest one in the model's own full forward over what came before."""
    (completion,) = tiny().generate([[5, 6, 7]], 20, unending())
    model = load_model(tiny_directory("llama-gqa")).model
    ids = [5, 6, 7, *completion.token_ids]
    with torch.inference_mode():
        best = model(torch.tensor([ids])).logits[0].argmax(-1).tolist()
    assert list(completion.token_ids) == best[2:-1]
    assert (completion.prompt_tokens, len(completion.token_ids)) == (3, 20)
    assert completion.finish_reason is FinishReason.LENGTH


def test_policies_and_batches_do_not_change_answers(tiny):
    asked = prompts(12)
    alone = [tiny().generate([prompt], 15)[0].token_ids for prompt in asked]
    for config in (
        {"policy": "paged"},
        {"policy": "contiguous", "max_length": 60},
        {"policy": "paged", "blocks": 14, "watermark": 0.0},
        {"policy": "paged", "token_budget": 5, "max_running": 3},
    ):
        got = tiny(**config).generate(asked, 15)
        assert [completion.token_ids for completion in got] == alone


@pytest.mark.parametrize(
    "more",
    [{}, {"top_k": 30, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2, "logprobs": 1}],
)
def test_seeded_answers_do_not_depend_on_neighbours_or_preemptions(tiny, more):
    params = unending(temperature=1.3, seed=11, **more)
    asked = prompts(10)
    alone = [tiny().generate([prompt], 25, params)[0].token_ids for prompt in asked]
    assert len(set(alone)) == 10
    engine = tiny(blocks=16, watermark=0.0)
    ids = [engine.submit(prompt, 25, params) for prompt in asked]
    requests = list(engine.scheduler.waiting)
    done = {}
    while engine.has_work:
        done |= {c.request: c.token_ids for c in engine.step().completions}
    assert [done[i] for i in ids] == alone
    assert sum(request.preemptions for request in requests) > 0
    assert_idle(engine)


def test_seeds_differ_and_no_seed_is_fresh(tiny):
    engine = tiny()
    answers = [
        engine.generate([[1, 2, 3]], 30, unending(temperature=2.0, seed=seed))[0].token_ids
        for seed in (0, 1, 2**64 - 1, None, None)
    ]
    assert len(set(answers)) == 5


def test_stop_tokens_end_an_answer_and_belong_to_it(tiny):
    whole = tiny().generate([[5, 6, 7]], 20, unending())[0].token_ids
    stop = whole[9]
    first = whole.index(stop)
    params = unending(stop_token_ids=[96, stop])
    (completion,) = tiny().generate([[5, 6, 7]], 20, params)
    assert completion.token_ids == whole[: first + 1]
    assert completion.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("as_list", [False, True])
def test_the_models_own_end_token_ends_unless_ignored(tiny_directory, as_list):
    loaded = load_model(tiny_directory("llama-gqa"))
    config = EngineConfig(kv_memory=2**20)
    whole = Engine(loaded, config).generate([[5, 6, 7]], 20, unending())[0].token_ids
    end = whole[6]
    loaded.model.generation_config.eos_token_id = [96, end] if as_list else end
    engine = Engine(loaded, config)
    (completion,) = engine.generate([[5, 6, 7]], 20)
    assert completion.token_ids == whole[: whole.index(end) + 1]
    assert completion.finish_reason is FinishReason.STOP
    assert engine.generate([[5, 6, 7]], 20, unending())[0].token_ids == whole


def test_everyone_gets_their_own_output(tiny):
    """A stream, a batch and an incremental request advance each other without mixing."""
    a, b, c, d = prompts(4, seed=3)
    expected = [tiny().generate([p], 12)[0].token_ids for p in (a, b, c, d)]
    engine = tiny()
    submitted = engine.submit(a, 12)
    stream = engine.stream(b, 12)
    streamed = [next(stream), next(stream)]
    batch = engine.generate([c, d], 12)
    streamed += list(stream)
    output = engine.step()
    assert [x.token_ids for x in batch] == expected[2:]
    assert tuple(token.id for token in streamed) == expected[1]
    assert {token.request for token in output.tokens} == {submitted}
    assert tuple(token.id for token in output.tokens) == expected[0]
    assert [x.token_ids for x in output.completions] == expected[:1]
    assert engine.step().completions == ()
    assert_idle(engine)


def test_cancel_frees_at_once_and_disturbs_nobody(tiny):
    a, b = prompts(2, seed=4)
    expected = tiny().generate([b], 12)[0].token_ids
    engine = tiny()
    first, second = engine.submit(a, 12), engine.submit(b, 12)
    engine.step()
    held = engine.scheduler.memory.free_blocks
    engine.cancel(first)
    assert engine.scheduler.memory.free_blocks > held
    assert engine.executor.requests == (second,)
    engine.cancel(first)
    engine.cancel(10**6)
    completions = []
    while engine.has_work:
        completions += engine.step().completions
    assert [(x.request, x.token_ids) for x in completions] == [(second, expected)]
    assert_idle(engine)


def test_an_abandoned_stream_frees(tiny):
    engine = tiny()
    stream = engine.stream([1, 2, 3], 50, unending())
    assert_idle(engine)
    next(stream)
    assert engine.scheduler.running
    stream.close()
    assert_idle(engine)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_generate_frees_and_others_go_on(tiny, monkeypatch, when, error):
    """Ctrl-C lands in the middle of a step, before or after it computed."""
    a, b = prompts(2, seed=5)
    params = unending(temperature=1.0, seed=3)
    expected = tiny().generate([a], 12, params)[0].token_ids
    engine = tiny()
    submitted = engine.submit(a, 12, params)
    execute, calls = engine.executor.execute, []

    def interrupted(plan):
        calls.append(plan)
        if len(calls) == 4 and when == "before":
            raise error
        result = execute(plan)
        if len(calls) == 4:
            raise error
        return result

    monkeypatch.setattr(engine.executor, "execute", interrupted)
    with pytest.raises(error):
        engine.generate([b, b], 20, params)
    assert engine.executor.requests == (submitted,)
    completions = []
    while engine.has_work:
        completions += engine.step().completions
    assert [x.token_ids for x in completions] == [expected]
    assert_idle(engine)


def test_an_interrupted_stream_frees(tiny, monkeypatch):
    engine = tiny()
    stream = engine.stream([1, 2, 3], 50, unending())
    next(stream)

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.executor.adapter, "forward", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert_idle(engine)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_useless_logits_end_their_request_alone(tiny, monkeypatch, poison):
    a, b = prompts(2, seed=6)
    expected = tiny().generate([b], 10, unending())[0].token_ids
    engine = tiny()
    forward, calls = engine.executor.adapter.forward, []

    def poisoned(step):
        logits = forward(step).clone()
        calls.append(step)
        if len(calls) == 4:
            logits[0, 7] = poison
        return logits

    monkeypatch.setattr(engine.executor.adapter, "forward", poisoned)
    bad, good = engine.generate([a, b], 10, unending())
    assert good.token_ids == expected
    assert (bad.finish_reason, len(bad.token_ids)) == (FinishReason.ERROR, 3)
    assert f"position {len(a) + 3}" in bad.error
    assert_idle(engine)
    calls.clear()
    with pytest.raises(KvhouseError, match="no finite logits"):
        list(engine.stream(a, 10, unending()))
    assert_idle(engine)


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "reason"),
    [
        ([], 4, "the prompt is empty"),
        ([1, VOCAB], 4, "token 97 at position 1 .* from 0 to 96"),
        ([-1], 4, "token -1 at position 0"),
        ([1.0], 4, "token 1.0 at position 0"),
        ([True], 4, "token True at position 0"),
        ("text", 4, "no tokenizer"),
        ([1] * 97, 4, "97 prompt . 4 new tokens exceed the maximum length of 100"),
        ([1] * 60, 20, "need 30,720 bytes of KV .20 blocks"),
        ([1], 0, "1 new token"),
    ],
)
def test_impossible_requests_are_rejected_and_leave_nothing(tiny, prompt, new_tokens, reason):
    engine = tiny(blocks=10, max_length=100)
    with pytest.raises(RequestRejected, match=reason):
        engine.submit(prompt, new_tokens)
    with pytest.raises(RequestRejected, match=reason):
        engine.generate([[1, 2], prompt], new_tokens)
    with pytest.raises(RequestRejected, match=reason):
        list(engine.stream(prompt, new_tokens))
    assert_idle(engine)


@pytest.mark.parametrize("given", ["text", [1, 2, 3]])
def test_a_single_prompt_is_not_taken_for_many(tiny, given):
    with pytest.raises(KvhouseError, match=r"give a single one as \[prompt\]"):
        tiny().generate(given, 4)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"max_length": 257}, "max_length 257: .* takes 1 to 256 tokens"),
        ({"max_length": 0}, "max_length 0: .* takes 1 to 256 tokens"),
        ({"blocks": 0}, "smaller than one block"),
        ({"policy": "heap"}, "unknown policy 'heap'"),
        ({"kv_format": "fp3"}, "unknown KV format 'fp3'"),
        ({"token_budget": 0}, "token_budget 0"),
    ],
)
def test_impossible_engines_are_refused(tiny, config, reason):
    with pytest.raises(KvhouseError, match=reason):
        tiny(**config)
