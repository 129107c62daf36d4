"""What all requests together may hold: connections, bodies and time."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
import threading
import time

import httpx2
import pytest

from kvhouse.server import Desk, ServerSettings, connections, gate, settings
from kvhouse.server.connections import Connection
from kvhouse.server.errors import ApiError
from kvhouse.server.gate import Gate
from kvhouse.server.held import Held

#: How often a test looks before it gives up.
MOST_LOOKS = 500
KEY = "the-key"


def connect(server):
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 30)


def received(connection):
    """All that comes until the server closes: status, headers and body."""
    content = b""
    while piece := connection.recv(2**16):
        content += piece
    head, _, body = content.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def overloaded(answer):
    status, headers, body = answer
    assert status == 503
    assert int(headers["retry-after"]) >= 1
    assert headers["connection"] == "close"
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("overloaded", "server_error")
    return error["message"]


def test_more_connections_than_allowed_are_told_so(tiny, serving):
    server = serving(tiny(), max_connections=2)
    held = [connect(server), connect(server)]
    with connect(server) as third:
        assert "too many connections" in overloaded(received(third))
    with connect(server) as fourth:  # also where it has asked for something by then
        fourth.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert "too many connections" in overloaded(received(fourth))
    held.pop().close()
    until_there_is_room(server)
    held.pop().close()


def until_there_is_room(server):
    """Ask until the server has noticed that a connection was closed."""
    for _ in range(MOST_LOOKS):
        if server.http.get("/health").status_code == 200:
            return
        time.sleep(0.01)
    raise AssertionError("the place of a closed connection stays taken")


def test_a_crowd_of_refused_clients_holds_nothing(tiny, serving):
    """More than may linger at once, none of whom goes away."""
    server = serving(tiny(), max_connections=1)
    lingering = server.ending.config.lingering
    with connect(server):
        crowd = [connect(server) for _ in range(100)]
        for one in crowd:
            assert one.recv(5) == b"HTTP/"
        assert len(lingering) <= 32
        for _ in range(MOST_LOOKS):
            if not lingering:
                break
            time.sleep(0.01)
        assert not lingering
        for one in crowd:
            one.close()
    until_there_is_room(server)


def test_a_refused_client_who_is_gone_already_is_no_error(tiny, serving, caplog):
    server = serving(tiny(), max_connections=1)
    linger = struct.pack("ii", 1, 0)
    with connect(server):
        for _ in range(50):
            one = connect(server)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            one.close()  # which resets it
    until_there_is_room(server)
    assert not caplog.records


def test_fewer_connections_where_the_process_may_open_fewer_files(monkeypatch):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    app, wanted = object(), ServerSettings("m", max_connections=10**6)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, limits[1]))
    assert connections.Config(app, wanted, 1).most == 1024 - 128
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, limits[1]))
    assert connections.Config(app, wanted, 1).most == 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, limits[1]))
    assert connections.Config(app, wanted, 1).most == 10**6


def test_a_head_that_does_not_come_ends_the_connection(tiny, serving, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 2.0)
    server = serving(tiny(400))
    execute = server.desk.engine.engine.executor.execute
    wait = threading.Event()

    def slow(plan):
        wait.wait(0.02)
        return execute(plan)

    server.desk.engine.engine.executor.execute = slow
    longer = server.http.build_request(
        "POST",
        "/v1/completions",
        json={"model": "tiny", "prompt": [1], "max_tokens": 150, "stream": True},
    )
    answer = server.http.send(longer, stream=True)  # which takes 3 seconds, and is not cut off
    with connect(server) as idle, connect(server) as slow_one, connect(server) as second:
        slow_one.sendall(b"GET /health HTTP/1.1\r\nHost")
        second.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answered = b""
        while not answered.endswith(b'{"status":"ok"}'):
            piece = second.recv(2**16)
            assert piece
            answered += piece
        second.sendall(b"G")
        for one in (idle, slow_one, second):
            assert one.recv(1) == b""
    assert answer.read().endswith(b"data: [DONE]\n\n")
    answer.close()


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n",  # TLS
        b"GET /health HTTP/1.1\r\n\r\n",  # no host
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 2**17,
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_as_every_error(tiny, serving, caplog, sent):
    server = serving(tiny())
    with connect(server) as connection:
        connection.sendall(sent)
        content = b""
        try:
            while piece := connection.recv(2**16):
                content += piece
        except ConnectionResetError:  # where it sent more than was read
            pass
    status, _, body = content.partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 400 Bad Request")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert server.ask([1]).status_code == 200
    assert not [record for record in caplog.records if record.exc_info]


def test_all_bodies_together_take_no_more_than_is_allowed(tiny, serving, monkeypatch):
    """Of 17 bodies of 95 bytes, 16 are held in 16 times 100."""
    monkeypatch.setattr(settings, "_LEAST_HELD", 0)
    server = serving(tiny(), max_body=100)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
    waiting = [connect(server) for _ in range(17)]
    for one in waiting:
        one.sendall(head + b" " * 95)
    (refused,), _, _ = select.select(waiting, [], [], 30)
    assert "1,600 bytes" in overloaded(received(refused))
    waiting.remove(refused)
    refused.close()
    assert select.select(waiting, [], [], 0)[0] == []
    body = b'{"model": "tiny", "prompt": [1], "max_tokens": 2}'.ljust(90)
    kind = {"content-type": "application/json"}
    asked = server.http.post("/v1/completions", content=body, headers=kind)
    assert asked.status_code == 503
    waiting.pop().close()
    for _ in range(MOST_LOOKS):
        asked = server.http.post("/v1/completions", content=body, headers=kind)
        if asked.status_code == 200:
            break
        time.sleep(0.01)
    assert asked.status_code == 200
    for one in waiting:
        one.close()
    server.until_free()


def test_bytes_come_back_once():
    held = Held(10)
    first, second = held.share(), held.share()
    first.take(4)
    second.take(6)
    with pytest.raises(ApiError, match="take 10 bytes"):
        first.take(1)
    second.close()
    second.close()
    first.take(6)
    with pytest.raises(ApiError):
        first.take(1)
    first.close()
    assert held.left == 10


def gate_of(app, settings):
    """A gate whose desk has settings, and is asked for no answer."""
    desk = Desk.__new__(Desk)
    desk.settings, desk.closing, desk._reading = settings, False, set()
    return Gate(app, desk)


def test_a_refused_body_holds_nothing_while_the_rest_of_it_is_read(monkeypatch):
    """Otherwise one that is refused would have others refused too."""
    monkeypatch.setattr(settings, "_LEAST_HELD", 0)
    small, left = gate_of(None, ServerSettings("m", max_body=1)), []
    pieces = iter([b"x", b"x", b"x"])

    async def receive():
        left.append(small._held.left)
        return {"type": "http.request", "body": next(pieces), "more_body": len(left) < 3}

    async def send(message):
        left.append(message.get("status"))

    asyncio.run(small({"type": "http", "path": "/", "headers": []}, receive, send))
    assert left == [16, 15, 16, 413, None]


@pytest.mark.parametrize(("most", "held"), [(1, 2**26), (4 * 2**20, 2**26), (2**30, 2**34)])
def test_what_may_be_held_follows_from_the_longest_body(most, held):
    assert ServerSettings("m", max_body=most).max_held == held


def test_a_slow_body_takes_from_the_time_of_its_request():
    """The time until which it must be answered is set before its body is waited for."""
    seen = []

    async def app(scope, receive, _):
        seen.append(scope["kvhouse.deadline"])
        assert (await receive())["body"] == b"{}"

    async def ask():
        loop = asyncio.get_running_loop()

        async def receive():
            seen.append(loop.time())
            await asyncio.sleep(0.05)
            first = len(seen) == 1
            return {"type": "http.request", "body": b"{" if first else b"}", "more_body": first}

        scope = {"type": "http", "path": "/v1/completions", "headers": []}
        await gate_of(app, ServerSettings("m", request_seconds=7.0))(scope, receive, None)

    asyncio.run(ask())
    begun, _, deadline = seen
    assert deadline <= begun + 7.0


def test_a_body_that_comes_while_the_server_ends_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(gate, "_LINGER", 0.01)
    ending, sent = gate_of(None, ServerSettings("m")), []
    ending._desk.closing = True

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    async def ask():
        scope = {"type": "http", "path": "/v1/completions", "headers": []}
        await asyncio.wait_for(ending(scope, receive, send), 10)

    asyncio.run(ask())
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["code"] == "shutting_down"


def test_a_body_whose_time_is_over_as_the_server_ends_is_no_error():
    """The time has passed, and the task that waits has not been told so yet."""
    desk, stopped = gate_of(None, ServerSettings("m"))._desk, []

    async def read():
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(loop.time()) as wait:
            with desk.reading(wait):

                def stop():
                    assert wait.expired()
                    desk.stop_reading()
                    stopped.append(True)

                loop.call_soon(stop)
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(read())
    assert stopped == [True]


def test_who_is_refused_while_sending_reads_why(tiny, serving):
    """Not that the connection was reset, though more comes than fits in any buffer."""
    server = serving(tiny(), api_keys=[KEY], max_body=2**24)
    large = b" " * 2**24
    with httpx2.Client(base_url=server.url, timeout=60) as nobody:
        assert nobody.post("/v1/completions", content=large).status_code == 401
        assert nobody.get("/health").status_code == 200
        response = server.http.post("/v1/completions", content=large + large)
        assert response.status_code == 413


class Stuck:
    """A transport whose client takes bytes for a while."""

    def __init__(self, sizes):
        self.sizes, self.closing, self.aborted = sizes, True, False

    def is_closing(self):
        return self.closing

    def get_write_buffer_size(self):
        return self.sizes.pop(0)

    def abort(self):
        self.aborted = True


@pytest.mark.parametrize(
    ("sizes", "closing", "aborted"),
    [
        ([9, 9], True, True),
        ([9, 10], True, True),
        ([9, 8, 7], True, False),
        ([9, 8, 8], True, True),
        ([9, 0, 9], True, False),
        ([9, 9, 9], False, False),
    ],
)
def test_a_client_who_takes_nothing_more_keeps_no_connection_open(sizes, closing, aborted):
    connection = Connection.__new__(Connection)
    connection.transport, connection._left = Stuck(sizes), 0
    connection.transport.closing = closing
    for _ in list(sizes):
        connection.sweep()
    assert connection.transport.aborted is aborted
