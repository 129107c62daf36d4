"""Streams that are closed before the start, and widths that would show nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvhouse.planner.catalogue import listed

KVHOUSE = Path(sys.executable).with_name("kvhouse")


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("kvhouse", f"'{KVHOUSE}'", 1)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )


def test_a_closed_stdout_is_one_line():
    done = shell("kvhouse plan gpt2 >&-")
    assert done.returncode == 1
    assert done.stderr == "kvhouse: the output cannot be written: stdout is closed\n"


def test_errors_do_not_go_to_stdout_where_stderr_is_closed():
    done = shell("kvhouse plan gpt2 --context 0 2>&-")
    assert (done.returncode, done.stdout) == (1, "")
    assert shell("kvhouse plan gpt2 --json 2>&-").returncode == 0


@pytest.mark.parametrize("columns", ["0", "1", "40"])
def test_no_width_hides_the_figures(columns):
    text = shell("kvhouse plan gpt2 --no-remedies", COLUMNS=columns).stdout
    assert max(map(len, text.splitlines())) == 40
    assert "…" not in text
    assert "gpt2" in text


def test_a_pipe_takes_more_columns_than_the_smallest_screen():
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [KVHOUSE, "models"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=variables,
    )
    widest = max(len(line) for line in done.stdout.splitlines() if not line.startswith("KV per"))
    assert 100 < widest <= 120
    narrow = shell("kvhouse models", COLUMNS="80").stdout
    assert max(len(line) for line in narrow.splitlines() if not line.startswith("KV per")) <= 80


@pytest.mark.parametrize("columns", ["80", "100", "120"])
def test_the_models_table_breaks_no_word(columns):
    text = shell("kvhouse models", COLUMNS=columns).stdout
    table = text[: text.index("KV per token: ")]
    words = {word for layers in all_kinds() for word in layers.split()}
    assert {word for word in words if word not in table} == set()
    assert "160 KiB" in table
    assert "compresse\n" not in "".join(line.rstrip() + "\n" for line in table.splitlines())


def all_kinds() -> set[str]:
    return {layers.kind for model in listed() for layers in model.layers}


def said(text):
    """The lines of stderr but those of a first use, which compiles."""
    return [line for line in text.splitlines() if not line.startswith("kvhouse: compiled ")]


def test_a_chat_without_input_ends():
    done = shell("kvhouse chat smollm2 <&-")
    assert (done.returncode, done.stdout, said(done.stderr)) == (0, "", [])


def test_input_that_is_no_text_is_refused_and_the_chat_goes_on():
    line = r"printf 'caf\351\nHi\n' | kvhouse chat smollm2 --max-new-tokens 2"
    done = shell(line, PYTHONIOENCODING="utf-8:strict")
    assert done.returncode == 0
    refused, usage = said(done.stderr)
    assert "not valid Unicode text" in refused
    assert "2 new tokens" in usage
