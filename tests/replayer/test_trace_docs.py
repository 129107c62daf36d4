"""docs/traces.md, in both languages: its commands and its Python work, its tables are complete."""

import doctest
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvhouse.replayer.generate import KINDS
from kvhouse.replayer.lengths import PRESETS
from kvhouse.replayer.trace_formats import LOG_WINDOW
from kvhouse.replayer.trace_rows import COLUMNS, REQUIRED
from kvhouse.replayer.traces import read_trace

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = ("traces.md", "traces.zh-CN.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (.+?) \| (.+?) \|", re.MULTILINE)
KVHOUSE = Path(sys.executable).with_name("kvhouse")


def blocks(document: str, language: str) -> list[str]:
    return [body for lang, body in FENCE.findall((DOCS / document).read_text()) if lang == language]


@pytest.mark.parametrize("language", ["bash", "python", "json"])
def test_both_languages_show_the_same_code(language):
    assert blocks(DOCUMENTS[0], language) == blocks(DOCUMENTS[1], language) != []


def test_the_commands_work(tmp_path):
    lines = "".join(blocks("traces.md", "bash")).splitlines()
    for line in lines:
        done = subprocess.run(
            [KVHOUSE, *shlex.split(line)[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"busy.csv.gz", "burst.jsonl"}


def test_the_python_gives_what_it_says():
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    for block in blocks("traces.md", "python"):
        runner.run(parser.get_doctest(block, {}, "traces.md", "traces.md", 0))
    assert (runner.failures, runner.tries) == (0, 3)


def test_the_lines_that_are_shown_are_a_trace(tmp_path):
    (shown,) = blocks("traces.md", "json")
    (tmp_path / "t.jsonl").write_text(shown)
    assert len(read_trace(tmp_path / "t.jsonl").requests) == len(shown.splitlines())
    assert {key for line in shown.splitlines() for key in json.loads(line)} <= set(COLUMNS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_tables_are_complete(document):
    text = (DOCS / document).read_text()
    rows = {
        name: second for cell, second in ROW.findall(text) for name in re.findall(r"`(\w+)`", cell)
    }
    assert set(COLUMNS) <= set(rows)
    optional = ("optional", "可选")
    assert {name for name in COLUMNS if not rows[name].endswith(optional)} == set(REQUIRED)
    assert set(KINDS) <= set(rows)
    names = {name for kind in KINDS.values() for name in kind} - {"rate", "cv"}
    assert names <= set(rows)
    assert all(f"`lengths={name}`" in text for name in PRESETS)
    assert f"{LOG_WINDOW:,}" in text
