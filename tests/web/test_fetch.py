"""A fetch ends in bounded time and memory, whatever a server sends."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvhouse.web.address import Address, FetchError
from kvhouse.web.fetch import fetch

#: Seconds between two bytes of a server that has time, less than any test's patience.
PAUSE = 0.02
#: Bytes after which it has had enough time to be noticed.
MOST_DRIPS = 250


class Slow:
    """Says what there is to say, a piece at a time, and notes whether it was cut off."""

    def __init__(self):
        self.cut = threading.Event()

    def say(self, handler, pieces):
        for piece in pieces:
            try:
                handler.wfile.write(piece)
            except OSError:
                self.cut.set()
                return

    def drip(self, handler, piece):
        def slowly():
            for _ in range(MOST_DRIPS):
                yield piece
                threading.Event().wait(PAUSE)

        self.say(handler, slowly())


@pytest.fixture
def served():
    """Serves answers, and has ended them all at the end; gives the address."""
    servers = []

    def serve(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer(self)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = False  # so that closing waits for them
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return Address.of(f"http://127.0.0.1:{server.server_port}/")

    yield serve
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("begun", "dripped"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 ", b"2"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_a_server_that_drips_is_cut_off(served, begun, dripped):
    """Each byte comes long before a socket would give up."""
    slow = Slow()

    def answer(handler):
        slow.say(handler, [begun])
        slow.drip(handler, dripped)

    with pytest.raises(FetchError, match=r"no answer within 0\.5 seconds"):
        fetch(served(answer), patience=0.5)
    assert slow.cut.wait(30)


def test_redirects_have_one_time_together(served):
    asked = []

    def answer(handler):
        asked.append(handler.path)
        threading.Event().wait(0.2)
        handler.send_response(200 if len(asked) == 8 else 302)
        handler.send_header("Location", f"/{len(asked)}")
        handler.end_headers()

    with pytest.raises(FetchError, match=r"no answer within 0\.5 seconds"):
        fetch(served(answer), patience=0.5)


def test_a_redirect_s_body_is_not_read(served):
    slow = Slow()

    def answer(handler):
        if handler.path == "/there":
            handler.send_response(200)
            handler.end_headers()
            slow.say(handler, [b"found"])
            return
        handler.send_response(302)
        handler.send_header("Location", "/there")
        handler.end_headers()
        slow.say(handler, (b"x" * 2**20 for _ in range(64)))

    assert fetch(served(answer), patience=60) == b"found"
    assert slow.cut.wait(30)


def test_a_redirect_in_a_circle_is_an_error(served):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", handler.path)
        handler.end_headers()

    with pytest.raises(FetchError, match="answers 302"):
        fetch(served(answer), patience=60)
