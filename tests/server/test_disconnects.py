"""A client that goes away frees what it held, at once."""

from __future__ import annotations

import asyncio
import socket
import threading

import httpx2
import pytest

from kvhouse.engine import AsyncEngine, SamplingParams
from kvhouse.server import Desk, ServerSettings, answer
from kvhouse.server.forms import CompletionForm

LONG = 200


@pytest.fixture
def server(tiny, serving):
    return serving(tiny(400))


def send(server, stream):
    """A connection on which a long answer was asked for."""
    body = (
        b'{"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 300, "temperature": 0, "stream": %b}'
        % (b"true" if stream else b"false")
    )
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    return connection


def slowed(server):
    """Let every step of the engine take a while; returns what ends that."""
    gate = threading.Event()
    execute = server.desk.engine.engine.executor.execute

    def slow(plan):
        gate.wait(0.02)
        return execute(plan)

    server.desk.engine.engine.executor.execute = slow
    return gate


@pytest.mark.parametrize("stream", [True, False])
def test_blocks_are_free_as_soon_as_the_client_has_gone(server, stream):
    slowed(server)
    connections = [send(server, stream) for _ in range(3)]
    state = server.until(lambda state: state["running"] == 3 and state["ledger"]["used"])
    held = {run["request"] for run in state["map"]} - {None}
    assert held == {request["id"] for request in state["requests"]}
    first, *others = connections
    first.close()
    state = server.until(lambda state: state["running"] == 2)
    (gone,) = held - {request["id"] for request in state["requests"]}
    assert gone not in {run["request"] for run in state["map"]}
    for connection in others:
        connection.close()
    steps = server.until_free()["totals"]["steps"]
    assert steps < LONG
    assert server.kv()["totals"]["steps"] == steps  # nobody is left to work for
    text = server.http.get("/metrics").text
    assert 'kvhouse_requests_total{outcome="disconnected"} 3.0' in text


def test_a_stream_that_is_left_early_frees_and_others_go_on(server):
    expected = server.ask([4, 5], 300).json()
    gate = slowed(server)
    result = []
    other = threading.Thread(target=lambda: result.append(server.ask([4, 5], 300).json()))
    other.start()
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        body = {"model": "tiny", "prompt": [6], "max_tokens": 300, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()  # which closes the stream when nobody has it any more
            assert next(lines).startswith("data: {")
            server.until(lambda state: state["running"] == 2)
        server.until(lambda state: state["running"] == 1)
    gate.set()
    other.join(60)
    assert result[0]["usage"] == expected["usage"]
    server.until_free()


def test_one_that_goes_while_it_waits_leaves_the_queue(tiny, serving):
    server = serving(tiny(400, max_running=1))
    slowed(server)
    first, second = send(server, True), send(server, False)
    server.until(lambda state: (state["running"], state["waiting"]) == (1, 1))
    second.close()
    server.until(lambda state: (state["running"], state["waiting"]) == (1, 0))
    first.close()
    server.until_free()


def test_one_that_stays_and_reads_nothing_is_let_go_when_its_time_is_over(tiny, monkeypatch):
    monkeypatch.setattr(answer, "_LAST_WORDS", 0.01)

    async def forever(*message):
        if message and message[0]["type"] == "http.response.start":
            return
        await asyncio.Event().wait()

    async def prompts(_):
        return [[1, 2, 3]]

    async def ask():
        engine = AsyncEngine(tiny(400))
        desk = Desk(engine, ServerSettings("tiny", request_seconds=0.2))
        form = CompletionForm("tiny", desk.prompts.text)
        made = answer.Answer(
            *(desk, form, prompts, 1, 300, SamplingParams(), 1), streamed=True, with_usage=False
        )
        deadline = asyncio.get_running_loop().time() + 0.2
        scope = {"kvhouse.salt": None, "kvhouse.deadline": deadline}
        await asyncio.wait_for(made(scope, forever, forever), 30)
        assert not await engine.look(lambda inner: inner.scheduler.has_work)
        assert desk.waiting == 0
        await desk.close()
        return desk.metrics.render(None).decode()

    assert 'kvhouse_requests_total{outcome="timeout"} 1.0' in asyncio.run(ask())
