"""A load over HTTP: a real server in a process of its own, well behaved and not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvhouse.bench import http_target
from kvhouse.bench.http_answers import Answer
from kvhouse.bench.http_target import HTTPTarget, Server, retry_after
from kvhouse.bench.load import send
from kvhouse.bench.stored import read_load
from kvhouse.bench.target import Failed, Piece, Usage
from kvhouse.errors import KvhouseError
from kvhouse.replayer.trace_request import TraceRequest

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
ENVIRONMENT = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
REQUESTS = [TraceRequest(0.0, 6, 4), TraceRequest(0.0, 7, 5)]
KEY = "sk-very-secret-0123456789"


@pytest.fixture(scope="module")
def url():
    script = Path(__file__).with_name("odd_server.py")
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.communicate(timeout=30)


def seen(url):
    with urllib.request.urlopen(f"{url}/seen") as answer:
        return json.load(answer)


def load(server, requests=REQUESTS, **options):
    async def run():
        async with HTTPTarget.connect(server) as target:
            return target, (await send(target, requests, **options)).records

    return asyncio.run(run())


def test_a_good_server_s_answers_are_counted_by_itself(url):
    target, records = load(Server(f"{url}/v1/", api_key=KEY))
    assert target.about["model"] == "good"  # the first that it lists
    assert (target.about["prompts"], target.about["end_of_sequence"]) == ("ids", "ignored")
    assert [record.error for record in records] == [None, None]
    assert [record.usage for record in records] == [Usage(6, 4, 2), Usage(7, 5, 2)]
    assert [len(record.gaps) for record in records] == [3, 4]
    assert all(0 <= record.sent <= record.first_token <= record.ended for record in records)
    asked = [body for body in seen(url) if body["model"] == "good"][-2:]
    assert sorted(len(body["prompt"]) for body in asked) == [6, 7]
    assert sorted(body["max_tokens"] for body in asked) == [4, 5]
    assert all(body["stream"] and body["ignore_eos"] for body in asked)
    assert all(body["temperature"] == 0 for body in asked)
    assert all(body["stream_options"] == {"include_usage": True} for body in asked)
    assert all(body["key"] == f"Bearer {KEY}" for body in asked)


def test_without_usage_each_piece_is_a_token(url):
    _, records = load(Server(url, "uncounted"))
    assert [record.usage for record in records] == [None, None]
    assert [record.output_tokens for record in records] == [4, 5]


def test_a_server_that_takes_no_ids_gets_words(url):
    target, records = load(Server(url, "texts"))
    assert (target.about["prompts"], target.about["end_of_sequence"]) == ("text", "ignored")
    assert [record.usage.prompt_tokens for record in records] == [6, 7]
    asked = [body["prompt"] for body in seen(url) if body["model"] == "texts"]
    assert all(isinstance(prompt, str) for prompt in asked[-2:])


def test_a_server_that_knows_no_ignore_eos_is_not_told_to(url):
    target, records = load(Server(url, "strict"))
    assert (target.about["prompts"], target.about["end_of_sequence"]) == ("ids", "heeded")
    assert [record.error for record in records] == [None, None]


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("busy", "http_429", "too many"),
        ("plain-500", "http_500", "Traceback: boom"),
        ("html", "malformed", "text/plain"),
        ("malformed", "malformed", "no JSON"),
        ("choiceless", "malformed", "without choices"),
        ("broken", "server", "out of memory"),
        ("early", "server", "abort"),
        ("cut", "cut", "the stream ended before the answer did"),
        ("reset", "cut", ""),
    ],
)
def test_each_way_to_fail_has_its_name(url, model, kind, words):
    _, records = load(Server(url, model))
    assert [record.error for record in records] == [kind, kind]
    assert all(words in record.reason and record.reason.isprintable() for record in records)


def test_a_slow_server_is_given_up(url):
    _, records = load(Server(url, "slow"), timeout=0.2)
    assert {record.error for record in records} == {"timeout"}


def test_a_server_that_takes_no_way_of_asking_is_refused(url):
    with pytest.raises(KvhouseError, match=r"http_400: no; a first request"):
        load(Server(url, "nothing"))


def test_a_key_is_never_repeated(url):
    with pytest.raises(KvhouseError, match=r"http_401: the key Bearer \*\*\* is wrong") as caught:
        load(Server(url, "secret", KEY))
    assert KEY not in str(caught.value)


def test_nobody_there_is_one_line():
    with pytest.raises(KvhouseError, match=r"127.0.0.1:9: connection: .*start a server there"):
        load(Server("http://127.0.0.1:9"))
    with pytest.raises(KvhouseError, match=r"127.0.0.1:9: connection: "):
        load(Server("http://127.0.0.1:9", "named"))
    for name in (None, "named"):
        with pytest.raises(KvhouseError, match="connection: Invalid IDNA hostname"):
            load(Server("http://☃.x", name))


@pytest.mark.parametrize(
    "wrong",
    ["http://", "ftp://host", "http://host:99999", "http://[", "http://h?x=1", "http://h\n"],
)
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(KvhouseError, match="write it like"):
        Server(wrong)


def test_a_password_in_an_address_is_refused_and_not_shown():
    with pytest.raises(KvhouseError, match="--api-key") as caught:
        Server("http://me:hidden@host")
    assert "hidden" not in str(caught.value)
    with pytest.raises(KvhouseError, match="header") as caught:
        Server("http://host", api_key="hid\nden")
    assert "hid" not in str(caught.value)


def test_without_the_client_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(KvhouseError, match=r"kvhouse\[load\]"):
        http_target.require_httpx2()


def test_a_date_to_come_back_at_is_no_number_of_seconds():
    assert retry_after("7") == 7.0
    assert [retry_after(text) for text in (None, "", "-1", "Wed, 21 Oct 2026", "1e3")] == [None] * 5


@pytest.mark.parametrize(
    "data",
    [
        "[]",
        "3",
        '{"choices": 3}',
        '{"choices": [3]}',
        '{"choices": [{"text": 3}]}',
        '{"choices": [], "usage": {"prompt_tokens": 1}}',
        '{"choices": [], "usage": {"prompt_tokens": true, "completion_tokens": 1}}',
        '{"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 1}}',
        "[" * 100_000,
    ],
)
def test_an_event_that_is_none_is_malformed(data):
    with pytest.raises(Failed) as caught:
        Answer().read(data)
    assert caught.value.kind == "malformed"
    assert len(caught.value.reason) < 300


def test_events_of_an_answer():
    answer = Answer()
    assert answer.read('{"choices": [{"text": ""}], "usage": null}') == [Piece(1)]
    assert answer.read('{"choices": [{"text": "a", "finish_reason": "stop"}]}') == [Piece(1)]
    assert answer.ended
    counts = '{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}'
    assert answer.read(counts) == [Usage(1, 2, None)]
    assert answer.read(" [DONE]") == []


def bench(*arguments, **environment):
    return subprocess.run(
        [KVHOUSE, "bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT | environment,
    )


def test_the_command_writes_the_same_figures_everywhere(url, tmp_path):
    files = [str(tmp_path / name) for name in ("b.json", "b.parquet")]
    done = bench(
        *(url, "--concurrency", "2", "--prompt", "6", "--generate", "4", "--requests", "5"),
        *("--slo-ttft", "10min", "--json", "--out", files[0], "--out", files[1]),
        KVHOUSE_API_KEY=f"{KEY}, another",
    )
    assert done.returncode == 0, done.stderr
    assert seen(url)[-1]["key"] == f"Bearer {KEY}"
    figures = json.loads(done.stdout)
    assert (figures["finished"], figures["output_tokens"]) == (5, 20)
    assert figures["paths"] is None  # nobody knows
    assert (figures["mode"], figures["concurrency"], figures["running"]["peak"]) == ("closed", 2, 2)
    assert figures["goodput"]["share"] == 1
    written = json.loads(Path(files[0]).read_text())
    records = written.pop("records")
    assert written == figures
    table = pq.read_table(files[1])
    assert json.loads(table.schema.metadata[b"kvhouse.bench"]) == figures
    assert table.to_pylist() == records
    assert table.column("index").to_pylist() == list(range(5))
    assert [read_load(file).rows for file in files] == [records, records]
    assert min(table.column("between_tokens_p50").to_pylist()) > 0
    assert set(table.column("output_tokens").to_pylist()) == {4}
    spans = zip(*(table.column(name).to_pylist() for name in ("arrival", "ended")), strict=True)
    assert max(end - begin for begin, end in spans) == figures["latency_seconds"]["max"]
    said = done.stdout + done.stderr + Path(files[0]).read_text() + str(table.schema.metadata)
    assert KEY not in said


def test_the_command_s_table_names_the_failures(url):
    done = bench(
        url, "--served-model", "cut", "--rate", "100", "--requests", "3", "--generate", "4"
    )
    assert done.returncode == 1
    assert "3 × cut: the stream ended before the answer did" in done.stdout
    assert done.stderr.endswith(
        "kvhouse: no request was answered: cut: the stream ended before the answer did\n"
    )


def test_an_interrupted_command_leaves_a_partial_result(url, tmp_path):
    out = tmp_path / "b.json"
    arguments = [url, "--served-model", "slow", "--concurrency", "3", "--json", "--out", str(out)]
    process = subprocess.Popen(
        [KVHOUSE, "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    while sum(body["model"] == "slow" and body["max_tokens"] == 128 for body in seen(url)) < 3:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    figures = json.loads(stdout)
    assert figures["partial"]
    assert (figures["submitted"], figures["unfinished"], figures["requests"]) == (3, 3, 12)
    assert "partial: ended early, after 0 of 12 requests" in stderr
    assert not out.exists()
    written = json.loads((tmp_path / "b.json.partial").read_text())
    assert [row["ended"] for row in written.pop("records")] == [None] * 3
    assert written == figures


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://h", "--rate", "1", "--concurrency", "2"], "give one"),
        (["http://h"], "needs --trace, --rate or --concurrency"),
        (["http://h", "--rate", "1", "--policy", "contiguous-max"], "--policy is for a model in"),
        (["http://h", "--rate", "1", "--repeats", "2"], "--repeats goes with a batch"),
        (["http://h", "--rate", "0"], "rate"),
        (["http://h", "--rate", "1", "--limit", "3"], "need --trace"),
        (["http://h", "--trace", "azure-conv-2023", "--rate", "1"], "--rate has no say"),
        (["http://h", "--rate", "1", "--out", "x.csv"], ".json or .parquet"),
        (["http://h", "--rate", "1", "--out", "x.json", "--out", "x.json"], "twice"),
        (["smollm2", "--served-model", "m"], "--served-model goes with a server's address"),
        (["smollm2", "--prefix-cache"], "--prefix-cache goes with a load"),
        (["smollm2", "--slo-ttft", "1s"], "goes with a load"),
        (["smollm2", "--out", "x.parquet"], "a batch has none"),
        (["smollm3", "--concurrency", "2"], "smollm3"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments, words, monkeypatch, capsys):
    from kvhouse.cli import main

    monkeypatch.setattr(sys, "argv", ["kvhouse", "bench", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # what the tests' own process heeds
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("kvhouse: ")
    assert said.count("\n") == 1
    assert words in said
