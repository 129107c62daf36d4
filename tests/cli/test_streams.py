"""Streams that are closed before the start, and widths that would show nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
