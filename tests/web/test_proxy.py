"""One rule for proxies: what runs here is asked directly, all else as the environment says."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvhouse.bench.http_target import HTTPTarget, Server
from kvhouse.cli.top import _state
from kvhouse.doctor.metrics.fetch import fetch
from kvhouse.errors import KvhouseError
from kvhouse.web.proxy import is_this_machine, proxy_for

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD")
PROXY = "http://user:secret@proxy.example:3128"


@pytest.fixture
def environment(monkeypatch):
    """Sets the environment's proxies; those of the machine that tests run on do not count."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("LocalHost.", True),
        ("api.localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("0.0.0.0", True),  # what a server that listens everywhere says of itself
        ("::1", True),
        ("::", True),
        ("::ffff:127.0.0.1", True),
        ("localhost.example", False),
        ("notlocalhost", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("", False),
    ],
)
def test_this_machine_is_told_by_name_and_number(host, here):
    assert is_this_machine(host) == here


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, "http://server.example", None),
        ({"HTTP_PROXY": PROXY}, "http://server.example:8000/v1", PROXY),
        ({"http_proxy": PROXY}, "http://server.example", PROXY),
        ({"HTTP_PROXY": PROXY}, "https://server.example", None),
        ({"HTTPS_PROXY": PROXY}, "https://server.example", PROXY),
        ({"ALL_PROXY": PROXY}, "https://server.example", PROXY),
        ({"ALL_PROXY": "http://other:1", "HTTP_PROXY": PROXY}, "http://server.example", PROXY),
        ({"HTTP_PROXY": "proxy.example:3128"}, "http://a.b", "http://proxy.example:3128"),
        ({"HTTP_PROXY": ""}, "http://server.example", None),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": "server.example"}, "http://server.example:8000", None),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": ".example"}, "http://server.example", None),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": "*"}, "http://server.example", None),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": "other.example"}, "http://server.example", PROXY),
        ({"HTTP_PROXY": PROXY}, "http://127.0.0.1:8000", None),
        ({"ALL_PROXY": PROXY}, "http://[::1]:8000/metrics", None),
        ({"ALL_PROXY": "socks5://x:1"}, "http://localhost:8000", None),
    ],
)
def test_the_way_to_a_server(environment, variables, url, proxy):
    environment(**variables)
    assert proxy_for(url) == proxy


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("socks5://user:secret@proxy.example:1080", "a proxy of kind socks5"),
        ("http://user:secret@proxy.example:many", "has no address"),
        ("http://", "has no address"),
    ],
)
def test_a_proxy_that_is_not_known_is_refused_by_all(environment, proxy, said):
    environment(ALL_PROXY=proxy)
    for ask in ASKING.values():
        with pytest.raises(KvhouseError, match=said) as refused:
            ask("http://server.example:8000")
        assert "NO_PROXY=server.example" in str(refused.value)
        assert "secret" not in str(refused.value)


def bench(url):
    async def connect():
        async with HTTPTarget.connect(Server(url)):
            pass

    asyncio.run(connect())


ASKING = {"top": lambda url: _state(url, 1), "doctor": fetch, "bench": bench}


@pytest.fixture
def refusing():
    """A server that refuses everything, which serves as a proxy too, and what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(418)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", ASKING)
def test_all_that_ask_servers_go_the_same_way(environment, refusing, name):
    url, asked = refusing
    environment(HTTP_PROXY=url, ALL_PROXY="socks5://proxy.example:1")
    with pytest.raises(KvhouseError, match="418"):
        ASKING[name]("http://server.example:8000")
    assert all(path.startswith("http://server.example:8000/") for path in asked)
    through = len(asked)
    assert through > 0
    environment(HTTP_PROXY="http://127.0.0.1:1")
    with pytest.raises(KvhouseError, match="418"):
        ASKING[name](url)
    assert len(asked) > through
    assert all(path.startswith("/") for path in asked[through:])
