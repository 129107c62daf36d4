"""Several answers to a prompt, texts that stop one, log-probabilities, what a failure costs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from kvhouse.cli.chat import Conversation
from kvhouse.core.check import check
from kvhouse.engine import Engine, EngineConfig, FinishReason, SamplingParams
from kvhouse.engine.load import load_model
from kvhouse.engine.sampler import Sampler
from kvhouse.errors import KvhouseError, RequestRejected

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


def sampling(**params) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.5, "seed": 3, "ignore_eos": True, **params})


def assert_idle(engine: Engine) -> None:
    memory = engine.scheduler.memory
    assert memory.free_blocks == memory.total_blocks
    assert engine.executor.requests == ()
    assert not engine.has_work


@pytest.fixture
def talking(tiny_directory):
    """Engines whose tokens are words of one to three letters, so that borders can be crossed."""
    words = {f"{'xyz'[i % 3]}{'ab'[i % 2] * (i % 3)}": i for i in range(6)}
    words |= {f"<{i}>": i for i in range(6, 97)}
    fast = Tokenizer(models.WordLevel(words, unk_token="<96>"))
    fast.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast)

    def build(**config) -> Engine:
        loaded = dataclasses.replace(load_model(tiny_directory("llama-gqa")), tokenizer=tokenizer)
        return Engine(loaded, EngineConfig(kv_memory=2**20, block_size=4, checked=True, **config))

    return build


def steps_and_tokens(engine: Engine, monkeypatch) -> list[int]:
    """The tokens of each step from now on."""
    counted, execute = [], engine.executor.execute

    def counting(plan):
        counted.append(plan.tokens)
        return execute(plan)

    monkeypatch.setattr(engine.executor, "execute", counting)
    return counted


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_each_answer_is_that_of_its_own_request(tiny, prefix_cache):
    params = sampling()
    alone = [tiny().generate([PROMPT], 12, one)[0].token_ids for one in params.samples(4)]
    assert len(set(alone)) == 4
    engine = tiny(prefix_cache=prefix_cache)
    got = engine.generate([PROMPT, [1, 2]], 12, params, n=4)
    assert [(c.sample, c.prompt_tokens) for c in got] == [
        (sample, length) for length in (10, 2) for sample in range(4)
    ]
    assert [c.token_ids for c in got[:4]] == alone
    assert_idle(engine)


def test_answers_share_their_prompt(tiny, monkeypatch):
    """The prompt is computed once, but for its last, incomplete block."""
    engine = tiny(prefix_cache=True)
    counted = steps_and_tokens(engine, monkeypatch)
    answers = engine.ask(PROMPT, 3, sampling(), n=4)
    assert answers.waiting
    while not answers.done:
        engine.step()
    requests = [live.request for live in answers.requests]
    # Its first step, then three rows of 2 tokens and a decode, then decodes.
    assert counted == [10, 3 * 2 + 1, 4, 3]
    assert [request.reused for request in requests] == [0, 8, 8, 8]
    answers.cancel()
    assert_idle(engine)


def test_a_prompt_is_found_again(tiny):
    """Answers do not change when their prompt's blocks are there from an earlier request."""
    cold = tiny().generate([PROMPT], 8, sampling())[0].token_ids
    engine = tiny(prefix_cache=True)
    (first,) = engine.generate([PROMPT], 8, sampling())
    answers = engine.ask([*PROMPT, *first.token_ids], 1, sampling())
    engine.step()
    assert first.token_ids == cold
    assert answers.requests[0].request.reused == 16
    answers.cancel()


def test_a_stream_of_several_answers(tiny):
    params = sampling()
    want = [c.token_ids for c in tiny().generate([PROMPT], 6, params, n=3)]
    engine = tiny(prefix_cache=True)
    tokens = list(engine.stream(PROMPT, 6, params, n=3))
    for sample in range(3):
        mine = [token for token in tokens if token.sample == sample]
        assert tuple(token.id for token in mine) == want[sample]
        assert [token.finish_reason for token in mine] == [None] * 5 + [FinishReason.LENGTH]
    assert_idle(engine)
    stream = engine.stream(PROMPT, 6, params, n=3)
    next(stream)
    stream.close()  # before the others have begun
    assert_idle(engine)
    with pytest.raises(KvhouseError, match="0 samples"):
        next(engine.stream(PROMPT, 6, params, n=0))


def test_logprobs_are_those_of_the_models_own_forward(tiny, tiny_directory):
    (answer,) = tiny().generate([PROMPT], 9, sampling(logprobs=3))
    model = load_model(tiny_directory("llama-gqa")).model
    with torch.inference_mode():
        logits = model(torch.tensor([[*PROMPT, *answer.token_ids]])).logits[0]
    want = logits.double().log_softmax(-1)[len(PROMPT) - 1 : -1]
    assert len(answer.logprobs) == 9
    for token, likely, row in zip(answer.token_ids, answer.logprobs, want, strict=True):
        assert likely.chosen == pytest.approx(float(row[token]), abs=1e-4)
        assert [t for t, _ in likely.top] == row.topk(3).indices.tolist()
    streamed = tiny().stream(PROMPT, 9, sampling(logprobs=3))
    assert [token.logprobs.chosen for token in streamed] == pytest.approx(
        [likely.chosen for likely in answer.logprobs]
    )
    assert tiny().generate([PROMPT], 2, sampling())[0].logprobs == ()


def test_the_penalty_counts_the_prompt_and_survives_preemption(tiny):
    """No token twice, though requests lose their memory and compute everything again."""
    params = sampling(temperature=0.0, repetition_penalty=1e9)
    asked = [[first, first + 1, first + 2] for first in range(10)]
    engine = tiny(blocks=16, watermark=0.0)
    requests = [engine.ask(prompt, 25, params) for prompt in asked]
    while not all(answers.done for answers in requests):
        engine.step()
    for prompt, answers in zip(asked, requests, strict=True):
        whole = [*prompt, *answers.completions[0].token_ids]
        assert len(set(whole)) == len(whole) == 28
    assert sum(answers.requests[0].request.preemptions for answers in requests) > 0


def test_a_stop_text_over_token_borders(talking):
    engine = talking()
    (whole,) = engine.generate([PROMPT], 40, sampling())
    borders = [len("".join(t)) for t in _pieces(engine, whole)]
    # Three letters that begin within one token and end within a later one.
    start = next(end - 1 for end in borders[:-1] if end > 6)
    stop = whole.text[start : start + 4]
    cut = whole.text.index(stop)
    (answer,) = engine.generate([PROMPT], 40, sampling(stop=["never", stop]))
    assert answer.text == whole.text[:cut]
    assert (answer.finish_reason, answer.stopped_by) == (FinishReason.STOP, stop)
    assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
    assert len(answer.token_ids) < 40
    tokens = list(engine.stream([*PROMPT], 40, sampling(stop=[stop])))
    assert "".join(token.text for token in tokens) == answer.text
    assert tokens[-1].finish_reason is FinishReason.STOP
    assert_idle(engine)


def _pieces(engine, answer) -> list[list[str]]:
    words = [engine.tokenizer.decode([token]) for token in answer.token_ids]
    return [words[:count] for count in range(1, len(words) + 1)]


def test_what_was_held_back_comes_with_the_last_token(talking):
    engine = talking()
    (whole,) = engine.generate([PROMPT], 10, sampling())
    tokens = list(engine.stream(PROMPT, 10, sampling(stop=[whole.text[-2:] + "!"])))
    assert "".join(token.text for token in tokens) == whole.text
    assert tokens[-1].finish_reason is FinishReason.LENGTH


def test_what_stopped_it_is_said(tiny):
    whole = tiny().generate([PROMPT], 9, sampling())[0].token_ids
    (answer,) = tiny().generate([PROMPT], 9, sampling(stop_token_ids=[whole[4]]))
    assert (answer.finish_reason, answer.stopped_by) == (FinishReason.STOP, whole[4])
    with pytest.raises(RequestRejected, match="no tokenizer: stop with stop_token_ids"):
        tiny().generate([PROMPT], 9, sampling(stop=["a"]))


def test_a_sampler_that_raises_ends_its_request_alone(tiny, monkeypatch):
    others = tiny().generate([[1, 2]], 8, sampling())[0].token_ids
    choose = Sampler.choose

    def raising(self, logits, tokens):
        if list(tokens[: len(PROMPT)]) == PROMPT and len(tokens) == len(PROMPT) + 3:
            raise ZeroDivisionError("no luck")
        return choose(self, logits, tokens)

    monkeypatch.setattr(Sampler, "choose", raising)
    engine = tiny()
    bad, good = engine.generate([PROMPT, [1, 2]], 8, sampling())
    assert good.token_ids == others
    assert (bad.finish_reason, len(bad.token_ids)) == (FinishReason.ERROR, 3)
    assert bad.error == "sampling failed with ZeroDivisionError (no luck) at position 13"
    assert_idle(engine)


def test_a_tokenizer_that_raises_ends_its_request_alone(talking, monkeypatch):
    engine = talking()
    others = engine.generate([[1, 2]], 8, sampling())[0].token_ids
    decode, calls = type(engine.tokenizer).decode, []

    def raising(self, *args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise ValueError("no text")
        return decode(self, *args, **kwargs)

    monkeypatch.setattr(type(engine.tokenizer), "decode", raising)
    bad, good = engine.generate([PROMPT, [1, 2]], 8, sampling())
    assert good.token_ids == others
    assert (bad.finish_reason, bad.error) == (
        FinishReason.ERROR,
        "its text could not be made: ValueError (no text)",
    )
    assert_idle(engine)


@pytest.fixture(scope="module")
def loaded(tiny_directory):
    return load_model(tiny_directory("llama-gqa"))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_cancelling_at_any_step_frees_everything_at_that_step(loaded, data):
    """Requests of all kinds come and are dropped at random; the last drop leaves nothing."""
    config = EngineConfig(
        kv_memory=20 * 4 * 96 * 4,  # so small that requests lose memory
        block_size=4,
        token_budget=24,
        watermark=0.0,
        prefix_cache=data.draw(st.booleans()),
        checked=True,
    )
    engine = Engine(loaded, config)
    held = {}
    for _ in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(0, 3))):
            length = data.draw(st.integers(1, 30))
            prompt = [(length + i) % 97 for i in range(length)]
            n = data.draw(st.integers(1, 3))
            answers = engine.ask(prompt, data.draw(st.integers(1, 12)), sampling(), n)
            held[id(answers)] = answers
        if engine.has_work:
            engine.step()
        for key in data.draw(st.lists(st.sampled_from(sorted(held)), max_size=2)) if held else ():
            answers = held[key]
            answers.cancel()
            memory = engine.scheduler.memory
            mine = {live.id for live in answers.requests}
            assert not mine & set(memory.holders)
            assert not mine & set(engine.executor.requests)
            check(engine.scheduler)
    for answers in held.values():
        answers.cancel()
    check(engine.scheduler)
    assert_idle(engine)


def test_a_conversation_becomes_what_the_template_writes(smollm2_model):
    """Its beginning and end come from the template alone; no token is added before them."""
    engine = Engine(smollm2_model, EngineConfig(kv_memory=2**24, max_length=128))
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 👋"}]
    ids = engine.chat_prompt(turns)
    assert smollm2_model.tokenizer.decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi 👋<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert engine.prompt_ids("Hi") == smollm2_model.tokenizer("Hi")["input_ids"]


def test_a_template_that_refuses_and_none_at_all(talking):
    engine = talking()
    with pytest.raises(RequestRejected, match="this model has no chat template"):
        engine.chat_prompt([{"role": "user", "content": "Hi"}])
    engine.tokenizer.chat_template = "{{ raise_exception('only users speak') }}"
    with pytest.raises(RequestRejected, match="refuses this: only users speak"):
        engine.chat_prompt([{"role": "system", "content": "Hi"}])


def test_what_is_held_is_counted_in_bytes(tiny):
    engine = tiny()
    assert engine.held_bytes == 0
    list(engine.stream(PROMPT, 3, sampling()))
    assert engine.held_bytes == 3 * 4 * 96 * 4  # 12 tokens in 3 blocks


def test_ctrl_c_stops_an_answer_of_a_chat_and_the_chat_goes_on(talking, monkeypatch, capsys):
    engine = talking(prefix_cache=True)
    engine.tokenizer.chat_template = "{% for turn in messages %}{{ turn.content }} {% endfor %}"
    conversation = Conversation(engine, [], 20, sampling())
    step, calls = engine.step, []

    def interrupted():
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(engine, "step", interrupted)
    conversation.reply("<9> <10>")
    assert_idle(engine)
    first = capsys.readouterr()
    assert "3 new tokens" in first.err
    assert "stopped" in first.err
    conversation.reply("<11>")
    assert_idle(engine)
    assert "20 new tokens" in capsys.readouterr().err
