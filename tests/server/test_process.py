"""The server as a process: how it begins, how it ends, and what it says where it cannot."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

from kvhouse.errors import KvhouseError
from kvhouse.server import ServerSettings, bind, listen

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
ASK = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 400, "temperature": 0}


def refused(*arguments):
    """What a server says that cannot begin."""
    done = subprocess.run(
        [KVHOUSE, "serve", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert done.stdout == ""
    return line


def test_what_cannot_begin_says_why_in_a_line(tiny_directory):
    assert "no model 'no-such-model'" in refused("no-such-model")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(str(tiny_directory), "--port", str(port))
        assert f"cannot listen at 127.0.0.1 port {port}: Address already in use" in line
        assert "--port" in line
    line = refused(str(tiny_directory), "--port", "0", "--max-connections", "0")
    assert "--max-connections 0: must be at least 1" in line
    with pytest.raises(KvhouseError, match="no address of this machine"):
        bind("no.such.host.invalid", 0)
    with pytest.raises(KvhouseError, match="API key number 2: give printable") as wrong:
        ServerSettings("m", api_keys=("fine", "my secret"))
    assert "secret" not in str(wrong.value)
    assert "fine" not in repr(ServerSettings("m", api_keys=("fine",)))


def test_too_little_memory_is_told_in_a_line(tiny_directory):
    pool = ("--kv-memory", "100TiB", "--block-size", str(2**20))
    line = refused(str(tiny_directory), "--port", "0", *pool)
    assert "100 TiB of KV memory do not fit" in line


def test_a_pool_that_is_smaller_than_the_model_is_told_and_ctrl_c_ends(tiny_directory):
    """64 KiB are 256 tokens of 256 bytes, and a request's last token is never kept.

    The server takes one connection at a time, as its option says.
    """
    limits = ("--kv-memory", "64KiB", "--port", "0", "--max-connections", "1")
    with subprocess.Popen(
        [KVHOUSE, "serve", str(tiny_directory), *limits],
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            said = [started.stderr.readline() for _ in range(3)]
            url = said[0].partition(" at ")[2].partition(",")[0]
            with httpx2.Client(base_url=url, timeout=60) as first:
                assert first.get("/health").status_code == 200
                assert httpx2.get(f"{url}/health", timeout=60).status_code == 503
                assert first.get("/health").status_code == 200
            started.send_signal(signal.SIGINT)
            last = started.communicate(timeout=60)[1]
        finally:
            started.kill()
    assert "at most 257 tokens, all that the pool holds" in said[2]
    assert "a larger --kv-memory allows up to 512" in said[2]
    assert "ending; " in last
    assert started.returncode == 0


def test_after_kill_9_the_port_is_free_and_nothing_is_left(restarted):
    assert restarted.url == restarted.before
    ledger = restarted.state["ledger"]
    assert ledger["free"] == ledger["total"] == restarted.state["pool"]["bytes"]
    assert restarted.state["totals"]["steps"] == 0
    assert restarted.state["requests"] == []


def test_the_first_signal_lets_who_runs_finish(tiny, serving):
    server = serving(tiny(400))
    with server.http.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        server.ending.handle_exit(signal.SIGTERM, None)
        events = [line for line in lines if line]
    assert len(events) == 400  # and the first, which was read before
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert any("requests that run have 30 s" in line for line in server.said)


def test_who_cannot_finish_is_told_so_and_a_second_signal_ends_at_once(tiny, serving):
    server = serving(tiny(400), grace_seconds=0.2)
    gate = threading.Event()
    execute = server.desk.engine.engine.executor.execute

    def slow(plan):
        gate.wait(0.05)
        return execute(plan)

    server.desk.engine.engine.executor.execute = slow
    answers = []
    asking = [
        threading.Thread(target=lambda s=s: answers.append(server.ask([1], 300, stream=s)))
        for s in (True, False)
    ]
    for thread in asking:
        thread.start()
    server.until(lambda state: state["running"] == 2)
    server.ending.handle_exit(signal.SIGTERM, None)
    late = server.http.get("/health") if server.desk.engine.alive else None
    for thread in asking:
        thread.join(60)
    whole, streamed = sorted(answers, key=lambda answer: answer.status_code == 200)
    assert whole.status_code == 503
    assert whole.json()["error"]["code"] == "shutting_down"
    assert "the server ended before the answer did" in streamed.text
    assert late is None or late.status_code == 503
    assert any("the grace time is over" in line for line in server.said)


def test_a_second_signal_ends_at_once(tiny, serving, monkeypatch):
    server = serving(tiny(400), grace_seconds=1000.0)
    gate = threading.Event()
    execute = server.desk.engine.engine.executor.execute

    def held(plan):
        gate.wait(60)
        return execute(plan)

    server.desk.engine.engine.executor.execute = held  # which keeps the server from ending
    answers = []
    asking = threading.Thread(target=lambda: answers.append(server.ask([1], 3)))
    asking.start()
    while not server.desk.engine.engine.scheduler.running:
        time.sleep(0.01)
    codes = []
    monkeypatch.setattr(listen, "leave", codes.append)
    server.ending.handle_exit(signal.SIGINT, None)
    assert codes == []
    server.ending.handle_exit(signal.SIGINT, None)
    assert codes == [130]
    gate.set()
    asking.join(60)
    assert answers[0].status_code == 200


def test_a_body_that_does_not_come_keeps_no_server_from_ending(tiny, serving, caplog):
    server = serving(tiny(), grace_seconds=1000.0, request_seconds=1000.0)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        assert server.http.get("/health").status_code == 200
        server.ending.handle_exit(signal.SIGTERM, None)
        content = b""
        while piece := connection.recv(2**16):
            content += piece
    assert content.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"shutting_down"' in content
    assert not caplog.records
