"""Logs are untrusted: no bytes crash, nothing is echoed raw, time and memory are bounded."""

from __future__ import annotations

import io
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvhouse.doctor import examine
from kvhouse.doctor.engines import LINES
from kvhouse.doctor.log import read_log
from kvhouse.doctor.scan import CHUNK
from kvhouse.doctor.texts import LANGUAGES, texts_of
from kvhouse.views.doctor import show_report
from kvhouse.web.mask import MOST_SHOWN, mask

NEEDLES = sorted({each.needle for each in LINES} | {each.anchor for each in LINES})
PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(NEEDLES),
    st.sampled_from([b"\n", b"\r", b"\0", b"\x1b[31m", b"\x1b]0;title\x07", b" = ", b"1e999"]),
    st.sampled_from(
        [b"-1", b"0", b"99999999999999999", b"1.5", b" GiB", b" MiB", b" tokens", b"("]
    ),
    st.sampled_from(
        [b"GPU KV cache size: 0 tokens\n", b"error", b"Available KV cache memory: -9 GiB"]
    ),
)


@given(st.lists(PIECES, max_size=60).map(b"".join))
def test_no_bytes_crash_it(content: bytes) -> None:
    report = examine(io.BytesIO(content))
    for language in LANGUAGES:
        report.to_dict(texts_of(language))
        out = io.StringIO()
        show_report(Console(file=out, width=80), report, texts_of(language))
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out.getvalue())


@pytest.mark.parametrize("each", LINES, ids=lambda each: each.needle.decode()[:40])
def test_every_format_survives_its_own_needle_many_times(each) -> None:
    """A line that nearly matches again and again takes work in proportion to its length."""
    line = (each.anchor + b" " + each.needle) * (2**16 // (len(each.anchor + each.needle) + 1))
    read_log(io.BytesIO(line))


class Generated(io.RawIOBase):
    """So many bytes of a block again and again, none of which is kept."""

    def __init__(self, block: bytes, size: int) -> None:
        self.block, self.left, self.at = block, size, 0

    def read(self, size: int = -1) -> bytes:
        count = min(size, self.left)
        self.left -= count
        repeated = self.block[self.at :] + self.block * (count // len(self.block) + 1)
        self.at = (self.at + count) % len(self.block)
        return repeated[:count]


STATISTICS = (
    b"INFO 02-25 20:49:56 [loggers.py:127] Engine 000: Avg prompt throughput: 67.6 tokens/s, "
    b"Avg generation throughput: 75.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache "
    b"usage: 13.9%, Prefix cache hit rate: 54.2%\n"
)
ACCESS = b'INFO:     10.0.0.1:60988 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


@pytest.mark.parametrize(
    ("block", "size"),
    [
        (ACCESS * 200 + STATISTICS, 50 * 10**6),
        (b"x" * 4000, 50 * 10**6),
        (b"\0" * 1000 + b"\n", 50 * 10**6),
        (b"\x1b[31m", 4 * 10**6),
        (b"memory\n" * 100, 3 * 10**5),
    ],
    ids=["served", "one endless line", "zeros", "colours", "anchors"],
)
def test_memory_is_bounded(block: bytes, size: int) -> None:
    stream = Generated(block, size)
    tracemalloc.start()
    log = read_log(stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert log.size == size
    assert peak < 24 * CHUNK


def test_work_is_bounded() -> None:
    """Lines without an anchor cost no regex, and a line of statistics costs one."""
    lines = 2000
    assert read_log(io.BytesIO(ACCESS * lines)).tried == 0
    assert read_log(io.BytesIO(STATISTICS * lines)).tried == lines


def test_facts_do_not_grow_with_the_log() -> None:
    text = "".join(f"(Worker_TP{n} pid=1) GPU KV cache size: {n} tokens\n" for n in range(5000))
    log = read_log(io.BytesIO(text.encode()))
    assert len(log.facts.all("kv_tokens")) <= 1024


HOMES = "/" + "home"
SECRETS = {
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz": "model='hf_AbCdEfGhIjKlMnOpQrStUvWxYz'",
    "sk-abcdefghij1234567890": "--api-key sk-abcdefghij1234567890 --port 1",
    "hunter22hunter": "'api_key': 'hunter22hunter', 'port': 1",
    "s3cr3tvalue": "HF_TOKEN=s3cr3tvalue vllm serve",
    "QWxhZGRpbjpvcGVu": "Authorization: Bearer QWxhZGRpbjpvcGVu",
    "swordfish": "http://alice:swordfish@proxy:3128/",
    "alice": f"{HOMES}/alice/models/x",
    "bob": "C:/Users/bob/models",
    "AKIAIOSFODNN7EXAMPLE": "AKIAIOSFODNN7EXAMPLE",
}


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_masked(secret: str) -> None:
    assert secret not in mask(SECRETS[secret])
    assert "***" in mask(SECRETS[secret])


@pytest.mark.parametrize(
    "text", ["'max_num_batched_tokens': 1024", "max_total_tokens: 4096,", "GPU KV cache: 5 tokens"]
)
def test_figures_are_no_secrets(text: str) -> None:
    assert mask(text) == text


def test_what_is_shown_is_one_short_line() -> None:
    shown = mask("\x1b[31mred\x1b[0m\n\t\x00" + "word " * 1000)
    assert shown.startswith("red word")
    assert len(shown) <= MOST_SHOWN
    assert shown.isprintable()


def test_secrets_in_a_launch_line_are_not_shown(examined) -> None:
    report = examined(
        f"non-default args: {{'model': '{HOMES}/alice/m', 'api_key': 'hunter22hunter', "
        "'hf_token': 'hf_AbCdEfGhIjKlMnOp', 'max_model_len': 8192}\n"
        "GPU KV cache size: 42,656 tokens\n"
    )
    shown = str(report.to_dict(texts_of("en")))
    assert "alice" not in shown
    assert "hunter" not in shown
    assert "hf_A" not in shown
    assert report.log.facts.count("max_model_len") == 8192
