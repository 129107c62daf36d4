"""A real server, polled by the real command, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvhouse.doctor.metrics.fetch import fetch
from kvhouse.doctor.metrics.watch import Watched, polls
from kvhouse.web.address import FetchError
from kvhouse.web.fetch import MOST_BYTES

SOURCE = Path(__file__).parents[2] / "src"
Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def served() -> Iterator[Callable[[Answer], str]]:
    """Serves answers; gives the address."""
    servers: list[ThreadingHTTPServer] = []

    def serve(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = False  # so that closing waits for them
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def reply(handler: BaseHTTPRequestHandler, text: str, code: int = 200, **headers: str) -> None:
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(text.encode())


def scrape(n: int) -> str:
    """The n-th: each has 3 more preemptions and 1,000 more tokens asked for, 250 of them found."""
    return (
        'vllm:num_requests_running{engine="0",model_name="m"} 7\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {n}\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.95\n'
        'vllm:cache_config_info{kv_cache_max_concurrency="1.5"} 1\n'
        f'vllm:num_preemptions_total{{engine="0",model_name="m"}} {1000 + 3 * n}\n'
        f'vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {1000 * n}\n'
        f'vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {250 * n}\n'
    )


def counting() -> Answer:
    asked = iter(range(1, 10**6))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        assert handler.path == "/metrics"
        reply(handler, scrape(next(asked)))

    return answer


def command(*arguments: str) -> subprocess.Popen[str]:
    program = "from kvhouse.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, "doctor", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "120"},
    )


def test_a_line_a_poll_and_a_summary_after_ctrl_c(served) -> None:
    watching = command(served(counting()), "--watch", "--every", "0.1", "--json")
    assert watching.stdout is not None
    lines = [json.loads(watching.stdout.readline()) for _ in range(3)]
    watching.send_signal(signal.SIGINT)
    rest, error = watching.communicate(timeout=60)
    assert (watching.returncode, error) == (0, "")
    first, second, third = lines
    assert first["preemptions_per_second"] is None
    assert [second[name] for name in ("running", "fits", "waiting", "usage")] == [7, 1.5, 2, 0.95]
    assert third["hit_rate"] == 0.25
    assert third["preemptions_per_second"] == pytest.approx(3 / third["seconds"], rel=0.01)
    *more, last = [json.loads(line) for line in rest.splitlines()]
    summary: dict[str, Any] = last["summary"]
    grown = 3 * (len(lines) + len(more) - 1)
    facts = {fact["name"]: fact["value"] for fact in summary["facts"]}
    assert facts["preempted_total"] == grown  # of the watch, not the 1,000 before it
    assert summary["source"] == "metrics"


def test_a_table_on_a_terminal(served) -> None:
    watching = command(served(counting()), "--watch", "--every", "0.1", "--lang", "zh")
    assert watching.stdout is not None
    head, first, second = (watching.stdout.readline().split() for _ in range(3))
    watching.send_signal(signal.SIGINT)
    rest, _ = watching.communicate(timeout=60)
    assert head[:4] == ["轮次", "运行", "等待", "池"]
    assert first[:4] == ["1", "7/1.5", "1", "95.0%"]
    assert second[5] == "25.0%"
    assert "vllm" in rest


def test_one_answer_is_a_report(served) -> None:
    done = command(served(counting()), "--json")
    out, _ = done.communicate(timeout=60)
    assert json.loads(out)["source"] == "metrics"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["server.log", "--watch"], "a server is watched by its address"),
        (["http://127.0.0.1:1/", "--watch", "--every", "0"], "give from 0.1"),
        (["http://user:hunter22@127.0.0.1:1/metrics"], "http://***@127.0.0.1:1/metrics: no answer"),
        (["ftp://127.0.0.1/metrics"], "give an address such as http://"),
        (["file:///etc/passwd"], "give an address such as http://"),
        (["http://127.0.0.1:99999/"], "is no address"),
    ],
)
def test_what_cannot_be_asked_is_one_line(arguments: list[str], message: str) -> None:
    out, error = command(*arguments).communicate(timeout=60)
    assert out == ""
    assert message in error
    assert error.count("\n") == 1
    assert "hunter22" not in error


def test_a_server_that_goes_away_is_asked_again() -> None:
    answers: list[bytes | FetchError] = [
        *(scrape(1).encode(), FetchError("gone"), b"<html>", scrape(4).encode())
    ]

    def ask() -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, FetchError):
            raise answer
        return answer

    times = iter((0.0, 2.0, 10.0))
    watched = Watched()
    found = polls(ask, lambda: next(times), lambda: None, watched)
    first, gone, page, last = (next(found) for _ in range(4))
    assert (first.problem, gone.problem) == ("", "gone")
    assert "no figure" in page.problem
    assert last.seconds == 10  # since the last answer with figures
    assert last.rate("preempted_total") == pytest.approx(9 / 10)
    assert (watched.polls, watched.silent) == (4, 2)
    assert watched.log().facts.count("preempted_total") == 9


def test_the_first_answer_must_come() -> None:
    def ask() -> bytes:
        raise FetchError("gone")

    with pytest.raises(FetchError, match="gone"):
        next(polls(ask, lambda: 0.0, lambda: None, Watched()))


def test_a_login_goes_in_a_header(served) -> None:
    seen: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers["Authorization"])
        reply(handler, "x")

    address = served(answer).replace("http://", "http://Aladdin:open%20sesame@")
    assert fetch(address) == b"x"
    assert seen == ["Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="]  # the example of RFC 7617


def test_another_path_is_followed_and_another_server_is_not(served) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/metrics":
            reply(handler, "", 307, Location="/metrics/")
        elif handler.path == "/metrics/":
            reply(handler, "found")
        else:
            reply(handler, "", 302, Location="http://192.0.2.1/secret?token=abcdef")

    address = served(answer)
    assert fetch(address) == b"found"
    with pytest.raises(FetchError, match="sends us to") as error:
        fetch(f"{address}/elsewhere")
    assert "abcdef" not in str(error.value)


def test_an_answer_is_bounded(served) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        piece = b"x" * 2**20
        for _ in range(MOST_BYTES // len(piece) + 2):
            try:
                handler.wfile.write(piece)
            except OSError:
                return

    with pytest.raises(FetchError, match="more than"):
        fetch(served(endless))


def test_a_slow_answer_is_given_up(served) -> None:
    let_go = threading.Event()

    def slow(_: BaseHTTPRequestHandler) -> None:
        let_go.wait(30)

    try:
        with pytest.raises(FetchError, match="no answer"):
            fetch(served(slow), patience=0.2)
    finally:
        let_go.set()


def test_an_error_is_told(served) -> None:
    address = served(lambda handler: reply(handler, "", 404))
    with pytest.raises(FetchError, match="answers 404"):
        fetch(address)
