"""``kvhouse doctor`` as a command."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kvhouse.cli.doctor import _read
from kvhouse.errors import KvhouseError

KVHOUSE = Path(sys.executable).with_name("kvhouse")
LOG = (
    "Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-14B', "
    "dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1\n"
    "Available KV cache memory: 6.51 GiB\nGPU KV cache size: 42,656 tokens\n"
    "Maximum concurrency for 32,768 tokens per request: 1.30x\n"
)


def doctor(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KVHOUSE, "doctor", *arguments], input=text, capture_output=True, text=True, check=False
    )


def test_standard_input_and_a_file_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(LOG)
    piped, read = doctor("-", text=LOG), doctor(str(path))
    assert piped.returncode == read.returncode == 0
    assert piped.stdout == read.stdout
    assert "Nothing is wrong here" in read.stdout
    assert "agrees" in read.stdout


def test_json_and_chinese() -> None:
    found = json.loads(doctor("-", "--json", "--lang", "zh", text=LOG).stdout)
    assert found["engine"] == "vllm"
    assert found["derived"]["agrees"]
    assert found["diagnoses"][0]["title"] == "没有发现问题"
    assert "日志中的事实" in doctor("-", "--lang", "zh", text=LOG).stdout


def test_a_log_that_says_nothing_has_its_own_exit_code() -> None:
    result = doctor("-", text="hello\n")
    assert result.returncode == 3
    nothing, known = result.stdout.splitlines()
    assert "found in 1 line: give the whole log of a server" in nothing
    assert {"vllm", "sglang", "llama.cpp", "kvhouse"} <= set(re.split("[:;,] ", known))
    listed = json.loads(doctor("-", "--json", text="hello\n").stdout)["looked_for"]
    needles = {one["engine"]: one["needles"] for one in listed}
    assert "KV cache usage:" in " ".join(needles["vllm"])


@pytest.fixture
def guarded() -> Iterator[tuple[int, list[str | None]]]:
    """A server that wants a key: its port, and what it was sent."""
    sent: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(self.headers["Authorization"])
            known = sent[-1] == "Bearer first-key"
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(b"kvhouse_requests_running 3\n" if known else b"")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port, sent
        server.shutdown()
        thread.join()


def test_the_first_key_of_the_environment_is_sent(
    guarded: tuple[int, list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, sent = guarded
    monkeypatch.setenv("KVHOUSE_API_KEY", "first-key,second-key")
    assert _read(f"http://127.0.0.1:{port}").facts.series["running"].last == 3
    with pytest.raises(KvhouseError, match="answers 401"):  # which is no matter of that key
        _read(f"http://me:secret@127.0.0.1:{port}")
    assert sent == ["Bearer first-key", "Basic bWU6c2VjcmV0"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("", "asks for a key: set KVHOUSE_API_KEY"),
        ("second-key", "does not take the first key of KVHOUSE_API_KEY"),
    ],
)
def test_a_server_that_wants_another_key_says_so(
    guarded: tuple[int, list[str | None]], monkeypatch: pytest.MonkeyPatch, keys: str, said: str
) -> None:
    monkeypatch.setenv("KVHOUSE_API_KEY", keys)
    with pytest.raises(KvhouseError, match=said) as refused:
        _read(f"http://127.0.0.1:{guarded[0]}/metrics")
    assert "second-key" not in str(refused.value)


def test_what_is_wrong_is_one_line() -> None:
    for arguments in (
        ("nowhere.log",),
        ("-", "--lang", "fr"),
        ("-", "--engine-option", "colour=red"),
        ("-", "--engine-option", "tp"),
        ("-", "--model", "no-such-model"),
    ):
        result = doctor(*arguments, text=LOG)
        assert result.returncode == 1
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("kvhouse: ")
