"""What ``kvhouse top`` shows of a pool."""

from __future__ import annotations

import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rich.console import Console

from kvhouse.cli.top import _state
from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.errors import KvhouseError
from kvhouse.views.pool_state import MOST_CELLS, read_state
from kvhouse.views.top import pool_view
from kvhouse.web.fetch import MOST_BYTES

MIB = 2**20
STATE = {
    "model": "m",
    "seconds": 10.0,
    "pool": {
        "bytes": 100 * MIB, "blocks": 100, "block_tokens": 16, "kv_format": "int8",
        "policy": "paged", "block_bytes": MIB, "max_length": 512, "max_running": 8,
        "prefix_cache": True,
    },
    "ledger": dict.fromkeys(LEDGER_CLASSES, 0)
    | {"total": 100 * MIB, "used": 50 * MIB, "cached": MIB, "free": 49 * MIB, "saved": 0},
    "blocks": dict.fromkeys(LEDGER_CLASSES, 0) | {"used": 50, "cached": 1, "free": 49},
    "running": 1,
    "waiting": 2,
    "totals": {
        "generated_tokens": 100, "found_tokens": 16, "preemptions": 3, "decode_bytes": 10**10,
        "decode_seconds": 5.0, "seconds": 6.0, "steps": 40, "computed_tokens": 190,
        "admitted_tokens": 106,
    },
    "requests": [
        {
            "id": number, "state": "running" if number == 0 else "waiting", "prompt_tokens": 90,
            "generated_tokens": 10, "max_new_tokens": 50, "blocks": 7, "computed_tokens": 99,
            "found_tokens": 0, "preemptions": 0,
        }
        for number in range(12)
    ],
    "cells": 100,
    "map": [
        {"first": 0, "count": 50, "class": "used", "request": 0},
        {"first": 50, "count": 1, "class": "cached", "request": None},
        {"first": 51, "count": 49, "class": "free", "request": None},
    ],
}  # fmt: skip


def text_of(state, before=None, width=80):
    console = Console(width=width, no_color=True, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(pool_view(state, before, width))
    return capture.get()


def test_the_pool_in_a_terminal():
    text = text_of(STATE)
    lines = text.splitlines()
    assert "m: 100 MiB, 100 blocks of 16 tokens (int8, paged)" in text
    assert "1 running · 2 waiting · 50% held · 3 preemptions · 16 tokens found" in text
    assert "tokens/s" not in text  # one look has no rate
    assert "█" * 80 in lines  # the ledger, all of it
    assert "used 50 MiB   █ cached 1 MiB   █ free 49 MiB" in text
    drawn = lines.index("█" * 50 + "·" * 30)
    assert lines[drawn + 1] == "·" * 20
    assert "and 2 more" in text
    assert all(len(line) <= 80 for line in lines)


def test_rates_are_those_between_two_looks():
    later = copy.deepcopy(STATE)
    later["seconds"] += 2.0
    later["totals"]["generated_tokens"] += 64
    later["totals"]["decode_bytes"] += 3 * 10**10
    later["totals"]["decode_seconds"] += 1.5
    text = text_of(later, STATE)
    assert "32.0 output tokens/s · 20.0 GB/s read by decoding (measured)" in text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8000", "give an address such as http://127.0.0.1:8000"),
        ("file:///etc/passwd", "give an address such as http://127.0.0.1:8000"),
        ("http://127.0.0.1:1", "no answer: .*refused"),
        ("http://no.such.host.invalid", "no answer"),
        ("http://bad host", "is no address"),
    ],
)
def test_what_is_no_server_is_said_in_a_line(url, said):
    with pytest.raises(KvhouseError, match=said) as refused:
        _state(url, 1)
    assert "\n" not in str(refused.value)


@pytest.fixture
def answering():
    """A server that answers everything with a body; gives its address and what it was asked."""
    servers = []

    def serve(body, status=200, **headers):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append((self.path, self.headers["Authorization"]))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                for piece in body:
                    try:
                        self.wfile.write(piece)
                    except OSError:  # enough
                        return

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}", asked

    yield serve
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def changed(path, value):
    """The state with one value put in another's place."""
    state = copy.deepcopy(STATE)
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return state


def test_what_a_server_says_is_shown_as_it_is(answering):
    url, asked = answering([json.dumps(STATE | {"a_later_key": 1}).encode()])
    assert _state(f"{url}/", 100) == STATE
    assert asked == [("/kv?cells=100", None)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>", "Invalid JSON"),
        (b"[]", "no kvhouse server"),
        (b"[" * 100_000, "no kvhouse server"),
        (b'{"ledger": 1}', "model: Field required"),
        (changed(["ledger", "used"], "many"), "ledger.used: Input should be a valid integer"),
        (changed(["ledger", "used"], -1), "ledger.used: "),
        (changed(["ledger", "used"], 10**400), "ledger.used: "),
        (changed(["seconds"], float("nan")), "seconds: "),
        (changed(["totals", "decode_seconds"], float("inf")), "totals.decode_seconds: "),
        (changed(["map", 0, "class"], "\x1b[2J"), "map.0.class: Input should be 'used'"),
        (changed(["map", 0, "count"], 10**12), f"draws more than {MOST_CELLS:,} blocks"),
        (changed(["requests"], {}), "requests: "),
        (changed(["requests", 3, "id"], True), "requests.3.id: "),
    ],
)  # fmt: skip
def test_what_no_kvhouse_server_sends_is_said_in_a_line(body, said):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(KvhouseError) as refused:
        read_state(content, "http://x")
    assert said in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


def test_names_lead_no_terminal():
    content = json.dumps(changed(["model"], "m\x1b[2J\n" + "x" * 10**6)).encode()
    text = text_of(read_state(content, "http://x"))
    assert "\x1b" not in text
    assert r"m\x1b[2J\n" in text
    assert len(text) < 5000


def test_an_answer_without_an_end_is_refused(answering):
    url, _ = answering(b"x" * 2**20 for _ in range(MOST_BYTES // 2**20 + 2))
    with pytest.raises(KvhouseError, match="answers with more than 16,777,216 bytes"):
        _state(url, 1)


def test_a_server_that_asks_for_a_key(answering):
    url, _ = answering([], 401)
    with pytest.raises(KvhouseError, match="asks for a key: set KVHOUSE_API_KEY"):
        _state(url, 1)


def test_a_key_goes_to_the_server_that_was_named_alone(monkeypatch):
    asked = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/caught")
            self.end_headers()

        def log_message(self, *_):
            pass

    monkeypatch.setenv("KVHOUSE_API_KEY", "first-key,second-key")
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with pytest.raises(KvhouseError, match="sends us to http://localhost"):
                _state(f"http://127.0.0.1:{server.server_port}", 1)
        finally:
            server.shutdown()
            thread.join()
    assert asked == [("/kv?cells=1", "Bearer first-key")]


@pytest.mark.parametrize("key", ["schlüssel", "first\r\nX-Other: 1", "first\x7fsecond"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(monkeypatch, answering, key):
    monkeypatch.setenv("KVHOUSE_API_KEY", f"fine, {key}")
    url, asked = answering([])
    with pytest.raises(KvhouseError) as refused:
        _state(url, 1)
    said = str(refused.value)
    assert said.startswith("KVHOUSE_API_KEY: key number 2 has characters that no header can carry")
    assert said.isprintable()
    assert not any(part in said for part in ("schl", "first", "second", "Other", "fine"))
    assert asked == []
