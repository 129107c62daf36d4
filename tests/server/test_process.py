"""The server as a process: how it begins, how it ends, and what it says where it cannot."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
ASK = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 400, "temperature": 0}
ARGUMENTS = ("--name", "tiny", "--kv-memory", "4MiB", "--block-size", "4")


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
    too_much = refused(str(tiny_directory), "--kv-memory", "2TiB", "--block-size", "65536")
    assert "do not fit in the" in too_much
    assert "--kv-memory" in too_much
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = refused(str(tiny_directory), "--port", port)
        assert f"cannot listen at 127.0.0.1 port {port}: Address already in use" in line
    assert "no address of this machine" in refused(str(tiny_directory), "--host", "no.such.host.")
    assert "secret" not in refused(str(tiny_directory), "--api-key", "my secret")


def test_killed_it_begins_again_at_once_and_ends_with_grace(tiny_directory, process):
    """After kill -9 the port is free, and nothing is left; SIGTERM lets who runs finish."""
    with process(str(tiny_directory), *ARGUMENTS, "--port", "0") as (first, said):
        url = said["url"]
        with httpx2.Client(base_url=url, timeout=60) as client:
            client.post("/v1/completions", json=ASK | {"max_tokens": 2})
            first.kill()
            first.wait()
            with pytest.raises(httpx2.HTTPError):
                client.get("/health")
    port = url.rpartition(":")[2]
    with process(str(tiny_directory), *ARGUMENTS, "--port", port) as (second, said):
        assert said["url"] == url
        with httpx2.Client(base_url=url, timeout=60) as client:
            state = client.get("/kv").json()
            assert state["ledger"]["free"] == state["ledger"]["total"]
            assert state["totals"]["steps"] == 0
            with client.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as response:
                lines = response.iter_lines()
                next(lines)
                second.send_signal(signal.SIGTERM)
                events = [line for line in lines if line]
            assert events[-1] == "data: [DONE]"
            assert len(events) == 400  # the first was read before
            assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert second.wait(60) == 0
        assert "ending; requests that run have 30 s" in second.stderr.read()


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


def test_a_second_signal_ends_at_once(tiny_directory, process):
    arguments = (*ARGUMENTS, "--port", "0", "--grace-time", "1h", "--max-body", "1GiB")
    with process(str(tiny_directory), *arguments) as (started, said):
        host, port = said["url"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            # A request whose body never ends keeps the server from ending.
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
            connection.sendall(b"Content-Length: 1000000\r\n\r\n{")
            with httpx2.Client(base_url=said["url"]) as client:
                assert client.get("/health").status_code == 200
            started.send_signal(signal.SIGINT)
            while "a second signal ends at once" not in started.stderr.readline():
                pass
            started.send_signal(signal.SIGINT)
            assert started.wait(60) == 130
