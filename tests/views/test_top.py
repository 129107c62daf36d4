"""What ``kvhouse top`` shows of a pool."""

from __future__ import annotations

import copy
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rich.console import Console

from kvhouse.cli.top import _state
from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.errors import KvhouseError
from kvhouse.views.top import pool_view

MIB = 2**20
STATE = {
    "model": "m",
    "seconds": 10.0,
    "pool": {
        "bytes": 100 * MIB, "blocks": 100, "block_tokens": 16, "kv_format": "int8",
        "policy": "paged",
    },
    "ledger": dict.fromkeys(LEDGER_CLASSES, 0)
    | {"total": 100 * MIB, "used": 50 * MIB, "cached": MIB, "free": 49 * MIB, "saved": 0},
    "running": 1,
    "waiting": 2,
    "totals": {
        "generated_tokens": 100, "found_tokens": 16, "preemptions": 3, "decode_bytes": 10**10,
        "decode_seconds": 5.0,
    },
    "requests": [
        {
            "id": number, "state": "running" if number == 0 else "waiting", "prompt_tokens": 90,
            "generated_tokens": 10, "max_new_tokens": 50, "blocks": 7,
        }
        for number in range(12)
    ],
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
        ("127.0.0.1:8000", "give the server's URL"),
        ("file:///etc/passwd", "give the server's URL"),
        ("http://127.0.0.1:1", "is the server up"),
        ("http://no.such.host.invalid", "no answer"),
        ("http://bad host", "no answer"),
    ],
)
def test_what_is_no_server_is_said_in_a_line(url, said):
    with pytest.raises(KvhouseError, match=said) as refused:
        _state(url, 1)
    assert "\n" not in str(refused.value)


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
            with pytest.raises(KvhouseError, match="answers /kv with status 302"):
                _state(f"http://127.0.0.1:{server.server_port}", 1)
        finally:
            server.shutdown()
            thread.join()
    assert asked == [("/kv?cells=1", "Bearer first-key")]
