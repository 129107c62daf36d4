"""The official client works against a real server process, and gets what the engine answers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvhouse.engine import SamplingParams

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):")
TURNS = [
    {"role": "system", "content": "You answer in one sentence."},
    {"role": "user", "content": "Why is the sky blue?"},
]
NEW = 12


@pytest.fixture(scope="module")
def client(smollm2_url):
    with openai.OpenAI(base_url=f"{smollm2_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def offline(smollm2):
    return smollm2.generate(PROMPTS, NEW)


def test_completions_are_the_engines(client, offline, smollm2):
    answer = client.completions.create(
        model="smollm2", prompt=list(PROMPTS), max_tokens=NEW, temperature=0
    )
    assert [choice.text for choice in answer.choices] == [one.text for one in offline]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    reasons = [one.finish_reason.value for one in offline]
    assert [choice.finish_reason for choice in answer.choices] == reasons
    ids = [smollm2.tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    assert answer.usage.completion_tokens == sum(len(one.token_ids) for one in offline)
    by_ids = client.completions.create(
        model="smollm2", prompt=ids[0], max_tokens=NEW, temperature=0
    )
    assert by_ids.choices[0].text == offline[0].text


def test_streams_are_the_same_answers(client, offline):
    stream = client.completions.create(
        model="smollm2",
        prompt=list(PROMPTS),
        max_tokens=NEW,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, reasons, usage = ["", "", ""], [None] * 3, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert reasons[choice.index] is None
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == [one.text for one in offline]
    assert reasons == [one.finish_reason.value for one in offline]
    assert usage.completion_tokens == sum(len(one.token_ids) for one in offline)


def test_chats_whole_and_streamed_by_many_tasks_at_once(smollm2_url, smollm2):
    (expected,) = smollm2.generate([smollm2.chat_prompt(TURNS)], NEW)

    async def ask():
        async with openai.AsyncOpenAI(
            base_url=f"{smollm2_url}/v1", api_key="none", max_retries=0
        ) as client:
            asked = {
                "model": "smollm2", "messages": TURNS, "max_completion_tokens": NEW,
                "temperature": 0,
            }  # fmt: skip

            async def stream():
                chunks = await client.chat.completions.create(**asked, stream=True)
                return [chunk.choices[0].delta async for chunk in chunks]

            async def whole():
                return await client.chat.completions.create(**asked)

            return await asyncio.gather(whole(), stream(), whole(), stream())

    whole, streamed, again, _ = asyncio.run(ask())
    assert whole.choices[0].message.content == again.choices[0].message.content == expected.text
    assert whole.choices[0].message.role == streamed[0].role == "assistant"
    assert "".join(delta.content or "" for delta in streamed) == expected.text


def test_a_prompt_that_was_there_before_is_said_to_be_cached(client):
    prompt = "Of all the houses in the street, " * 12

    def cached():
        answer = client.completions.create(model="smollm2", prompt=prompt, max_tokens=1)
        return answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens

    length, first = cached()
    assert first == 0
    assert cached() == (length, (length - 1) // 16 * 16)


def test_several_answers_stops_and_seeds(client, smollm2):
    asked = {
        "model": "smollm2", "messages": TURNS, "max_tokens": NEW, "temperature": 0.8, "seed": 7,
        "n": 3, "top_p": 0.9, "extra_body": {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1},
    }  # fmt: skip
    answer = client.chat.completions.create(**asked)
    params = SamplingParams(0.8, 40, 0.9, 0.01, 1.1, seed=7)
    expected = smollm2.generate([smollm2.chat_prompt(TURNS)], NEW, params, n=3)
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [one.text for one in expected]
    assert len(set(texts)) > 1
    word = expected[0].text.split()[3]
    stopped = client.chat.completions.create(**asked, stop=[word]).choices[0]
    assert stopped.message.content == expected[0].text.partition(word)[0]
    assert stopped.finish_reason == "stop"


def test_log_probabilities_are_the_engines(client, smollm2):
    answer = client.completions.create(
        model="smollm2", prompt=PROMPTS[0], max_tokens=3, temperature=0, logprobs=2
    )
    given = answer.choices[0].logprobs
    (offline,) = smollm2.generate(PROMPTS[:1], 3, SamplingParams(logprobs=2))
    assert given.tokens == [smollm2.tokenizer.decode([token]) for token in offline.token_ids]
    assert given.token_logprobs == pytest.approx([one.chosen for one in offline.logprobs], abs=1e-4)
    assert all(len(top) == 2 for top in given.top_logprobs)
    chat = client.chat.completions.create(
        model="smollm2", messages=TURNS, max_tokens=2, temperature=0, logprobs=True, top_logprobs=3,
    )  # fmt: skip
    entries = chat.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == chat.choices[0].message.content
    for entry in entries:
        assert bytes(entry.bytes).decode() == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob
    pieces = client.completions.create(
        model="smollm2", prompt=PROMPTS[0], max_tokens=3, temperature=0, logprobs=2, stream=True
    )
    offsets = [chunk.choices[0].logprobs.text_offset[0] for chunk in pieces]
    assert offsets == given.text_offset


def test_errors_are_the_clients_own(client, smollm2_url):
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "kvhouse"
    with pytest.raises(openai.NotFoundError, match="no such model: this server has smollm2"):
        client.completions.create(model="gpt", prompt="x")
    with pytest.raises(openai.BadRequestError, match="exceed the maximum length") as refused:
        client.completions.create(model="smollm2", prompt="x", max_tokens=5000)
    assert refused.value.type == "invalid_request_error"
    assert refused.value.code == "context_length_exceeded"
    tools = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(openai.BadRequestError, match="tools is not supported: leave it out"):
        client.chat.completions.create(model="smollm2", messages=TURNS, tools=tools)
    assert smollm2_url.startswith("http://127.0.0.1:")


def test_metrics_count_what_was_asked(client, smollm2_url):
    def figures():
        text = client._client.get(f"{smollm2_url}/metrics").text
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    before = figures()
    answer = client.completions.create(model="smollm2", prompt=PROMPTS[1], max_tokens=5)
    after = figures()

    def grown(*name):
        return after[name] - before.get(name, 0)

    assert grown("kvhouse_generated_tokens_total") == answer.usage.completion_tokens
    assert grown("kvhouse_prompt_tokens_total") == answer.usage.prompt_tokens
    assert grown("kvhouse_requests_total", "finished") == 1
    assert grown("kvhouse_time_to_first_token_seconds_count") == 1
    assert grown("kvhouse_request_seconds_count") == 1
    steps = grown("kvhouse_steps_total")
    assert steps == answer.usage.completion_tokens
    # Steps of decoding read the weights, 134,515,008 numbers but for norms, and their context.
    per_step = grown("kvhouse_decode_bytes_total") / (steps - 1)
    assert 134_515_008 * 4 * 0.99 < per_step < 134_515_008 * 4 * 1.01
    classes = [value for name, value in after.items() if name[0] == "kvhouse_kv_bytes"]
    assert sum(classes) == 2**27 // 737_280 * 737_280
    assert after["kvhouse_requests_running",] == after["kvhouse_requests_waiting",] == 0


def test_top_shows_the_pool(smollm2_url):
    def top(*arguments):
        return subprocess.run(
            [KVHOUSE, "top", smollm2_url, *arguments],
            env=os.environ | {"COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    state = json.loads(top("--json"))
    classes = {
        name: size for name, size in state["ledger"].items() if name not in ("total", "saved")
    }
    assert sum(classes.values()) == state["ledger"]["total"] == state["pool"]["bytes"]
    assert sum(run["count"] for run in state["map"]) == state["cells"] == state["pool"]["blocks"]
    assert sum(state["blocks"].values()) == state["pool"]["blocks"]
    text = top()
    assert "smollm2: 128 MiB, 182 blocks of 16 tokens (fp32, paged)" in text
    assert "0 running · 0 waiting" in text
