"""What a server refuses, with which status, and in what shape."""

from __future__ import annotations

import json
import threading
import time

import httpx2
import pytest

from kvhouse.engine import SamplingParams

#: How often a test looks before it gives up.
MOST_LOOKS = 500
KEYS = ("first-key", "second-key")


def error_of(response, status):
    """The error of a response, which has OpenAI's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_keys_are_asked_for_and_set_prefix_caches_apart(tiny, serving):
    server = serving(tiny(prefix_cache=True), api_keys=KEYS)
    body = {"model": "tiny", "prompt": [5] * 12, "max_tokens": 1, "temperature": 0}
    with httpx2.Client(base_url=server.url, timeout=60) as nobody:
        for headers in ({}, bearer("first"), bearer("first-key2"), {"authorization": "first-key"}):
            response = nobody.post("/v1/completions", json=body, headers=headers)
            error = error_of(response, 401)
            assert error["code"] == "invalid_api_key"
            assert error["type"] == "authentication_error"
            assert "first-key" not in response.text
        for path in ("/kv", "/metrics", "/v1/models", "/nothing-there"):
            assert nobody.get(path).status_code == 401
        assert nobody.get("/health").json() == {"status": "ok"}
        assert nobody.get("/ui").status_code == 200
    cached = []
    for key in ("first-key", "second-key", "first-key", "second-key"):
        answer = server.http.post("/v1/completions", json=body, headers=bearer(key)).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 8, 8]  # of 12 tokens in blocks of 4, one has to be computed


def test_bodies_that_are_too_large_or_no_requests(tiny, serving):
    server = serving(tiny(), max_body=1000)
    assert server.ask([1] * 100).status_code == 200
    assert "1,000 bytes" in error_of(server.ask([1] * 1000), 413)["message"]

    def chunks():
        for _ in range(100):
            yield b"[1, 2, 3, 4, 5]" * 10

    headers = {"content-type": "application/json"}
    response = server.http.post("/v1/completions", content=chunks(), headers=headers)
    error_of(response, 413)
    for body in (b"{", b"\xff\xfe", b"[" * 900, b'"x"', b"", b"null", b"NaN"):
        response = server.http.post("/v1/completions", content=body, headers=headers)
        assert error_of(response, 400)["type"] == "invalid_request_error"
    assert server.until_free()["totals"]["generated_tokens"] == 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"colour": "red"}, "unknown or unsupported parameter: colour: leave it out"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported: leave it out"),
        ({"presence_penalty": -1}, "presence_penalty is not supported: leave it out"),
        ({"logit_bias": {"5": 1}}, "logit_bias is not supported: leave it out"),
        ({"echo": True}, "echo is not supported: leave it out"),
        ({"suffix": "end"}, "suffix is not supported: leave it out"),
        ({"n": 1, "best_of": 2}, "best_of is supported only where it equals n"),
        ({"n": 0}, "n: "),
        ({"n": "2"}, "n: "),
        ({"temperature": 3}, "temperature: "),
        ({"top_p": 0}, "top_p: "),
        ({"stop": [""]}, "stop.0: "),
        ({"stream_options": {"include_usage": True}}, "stream_options goes with stream=true"),
        ({"prompt": []}, "prompt: "),
        ({"prompt": {"text": "x"}}, "prompt: Input should be a valid string, or: "),
        ({"prompt": [True]}, "prompt.0: "),
        ({"prompt": [97]}, "token 97 at position 0 of the prompt is not in the vocabulary"),
        ({"prompt": "text"}, "this model has no tokenizer"),
        ({"prompt": [1], "stop": "x"}, "stop with stop_token_ids"),
        ({"prompt": [1] * 500, "max_tokens": 100}, "exceed the maximum length"),
        ({"prompt": [[1]] * 100, "n": 2}, "200 answers in one request: ask for at most 128"),
        ({"model": None}, "model: Field required"),
        ({"a\nb": 1}, r"unknown or unsupported parameter: a\nb"),
        ({"stream": True, "stream_options": {"a-b": 1}}, "parameter: stream_options.a-b"),
        ({"\ud800": 1}, "unable to parse raw data as a unicode string"),
    ],
)
def test_wrong_requests_are_refused_by_name(small_server, change, said):
    body = {"model": "tiny", "prompt": [1], "max_tokens": 2, **change}
    response = small_server.http.post(
        "/v1/completions",
        content=json.dumps(body),
        headers={"content-type": "application/json"},
    )
    error = error_of(response, 400)
    assert said in error["message"]
    assert error["message"].isprintable()


@pytest.fixture
def small_server(tiny, serving):
    return serving(tiny(200))


def test_what_means_nothing_is_taken(small_server):
    plain = small_server.ask([1, 2]).json()
    neutral = {
        "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "echo": False,
        "suffix": None, "best_of": 1, "n": 1, "user": "someone", "stop": None, "top_k": -1,
    }  # fmt: skip
    assert small_server.ask([1, 2], **neutral).json()["usage"] == plain["usage"]


def test_other_models_paths_and_methods(small_server):
    error = error_of(small_server.ask([1], model="gpt"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    error_of(small_server.http.get("/v1/models/gpt"), 404)
    assert small_server.http.get("/v1/models/tiny").json()["max_model_len"] == 512
    error_of(small_server.http.get("/nothing"), 404)
    error_of(small_server.http.get("/v1/completions"), 405)
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    response = small_server.http.post("/v1/chat/completions", json=chat)
    assert "no chat template" in error_of(response, 400)["message"]


def test_long_prompts_are_refused_before_they_are_computed(tiny, serving):
    server = serving(tiny(), max_prompt=10)
    assert server.ask([1] * 10).status_code == 200
    error = error_of(server.ask([1] * 11), 400)
    assert error["code"] == "context_length_exceeded"
    assert "the prompt has 11 tokens, and 10 are allowed" in error["message"]


def test_a_pool_that_is_smaller_than_the_model_bounds_requests(tiny, serving):
    """Ten blocks of 4 tokens, and the last token of an answer is never kept: 41."""
    server = serving(tiny(10, worded=True))
    assert server.http.get("/v1/models").json()["data"][0]["max_model_len"] == 41
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "w1 w2"}]}
    response = server.http.post("/v1/chat/completions", json=chat)
    usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 38)
    refused = [server.ask([1] * 20, 22), server.ask([1] * 41, 1)]
    many = chat | {"max_completion_tokens": 39}
    refused.append(server.http.post("/v1/chat/completions", json=many))
    for response, said in zip(
        refused,
        (
            "20 prompt + 22 new tokens exceed the maximum length of 41 tokens: "
            "ask for at most 21 new tokens, or shorten the prompt",
            "the prompt has 41 tokens, and 40 are allowed",
            "ask for at most 38 new tokens",
        ),
        strict=True,
    ):
        error = error_of(response, 400)
        assert error["code"] == "context_length_exceeded"
        assert said in error["message"]
        assert "max_length" not in error["message"]
    assert server.ask([1] * 20, 21).json()["usage"]["completion_tokens"] == 21
    assert server.ask([1] * 40, 1).status_code == 200
    assert "\nkvhouse_prompt_tokens_total 63.0\n" in server.http.get("/metrics").text


def test_prompts_of_refused_requests_do_not_count(small_server):
    """One is refused here, the other by the engine."""
    error_of(small_server.ask([1] * 600), 400)
    error_of(small_server.ask([1], stop="x"), 400)
    assert "\nkvhouse_prompt_tokens_total 0.0\n" in small_server.http.get("/metrics").text
    small_server.ask([[1, 2], [3]], 2)
    assert "\nkvhouse_prompt_tokens_total 3.0\n" in small_server.http.get("/metrics").text


def test_a_full_queue_says_when_to_come_again(tiny, serving):
    """One runs, two wait, and the next one is sent away until they are done."""
    server = serving(tiny(400), max_queue=2)
    gate = threading.Event()
    execute = server.desk.engine.engine.executor.execute

    def held(plan):
        gate.wait(60)
        return execute(plan)

    server.desk.engine.engine.executor.execute = held
    answers, threads = [], []
    running = server.desk.engine.engine.scheduler.running
    for waiting in range(3):
        thread = threading.Thread(target=lambda: answers.append(server.ask([1, 2], 4)))
        threads.append(thread)
        thread.start()
        while not running or server.desk.waiting < waiting:
            time.sleep(0.01)
    response = server.ask([1, 2], 4)
    assert error_of(response, 429)["code"] == "queue_full"
    assert 1 <= int(response.headers["retry-after"]) <= 60
    gate.set()
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200] * 3
    assert server.ask([1, 2], 4).status_code == 200
    assert 'outcome="refused"} 1.0' in server.http.get("/metrics").text


def test_answers_that_have_ended_fill_no_queue(tiny, serving):
    """Three of a request's four answers end with their first token, and the fourth goes on."""
    greedy = SamplingParams(ignore_eos=True)
    firsts = range(1, 30)
    drawn = tiny(800).generate([[first] for first in firsts], 40, greedy)
    ids = {first: one.token_ids for first, one in zip(firsts, drawn, strict=True)}
    short, long = next((a, b) for a in ids for b in ids if ids[a][0] not in ids[b])
    server = serving(tiny(400), max_queue=1)
    gate = threading.Event()
    execute = server.desk.engine.engine.executor.execute

    def held(plan):
        if any(row.first > 10 for row in plan.rows):
            gate.wait(60)
        return execute(plan)

    server.desk.engine.engine.executor.execute = held
    prompts, stop = [[short], [short], [short], [long]], [ids[short][0]]
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(server.ask(prompts, 40, stop_token_ids=stop))
    )
    thread.start()
    for _ in range(MOST_LOOKS):
        running = server.desk.engine.engine.scheduler.running
        if len(running) == 1 and running[0].known > 10 and not server.desk.waiting:
            break
        time.sleep(0.01)
    waiting = server.desk.waiting
    gate.set()
    thread.join(60)
    assert waiting == 0
    reasons = [choice["finish_reason"] for choice in answers[0].json()["choices"]]
    assert reasons == ["stop", "stop", "stop", "length"]


def test_requests_that_take_too_long_are_ended(tiny, serving):
    server = serving(tiny(), request_seconds=0.3)
    assert server.ask([1], 2).status_code == 200
    execute = server.desk.engine.engine.executor.execute
    gate = threading.Event()

    def slow(plan):
        gate.wait(0.1)
        return execute(plan)

    server.desk.engine.engine.executor.execute = slow
    error = error_of(server.ask([1], 200), 503)
    assert error["code"] == "timeout"
    server.until_free()
    response = server.ask([1], 200, stream=True)
    assert response.status_code == 200
    *tokens, error, done = response.text.strip().split("\n\n")
    assert tokens
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "timeout"
    assert done == "data: [DONE]"
    server.until_free()
