"""``kvhouse replay --html``, ``--png`` and ``--svg``: files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvhouse import devices
from kvhouse.cli.output import whole_file
from kvhouse.errors import KvhouseError

KVHOUSE = Path(sys.executable).with_name("kvhouse")
REPLAY = (
    *("replay", "backlog:prompt=30,output=20,requests=8", "--model", "llama-3-8b"),
    *("--kv-blocks", "40", "--max-length", "100"),
)


def run(*arguments, cwd, **variables):
    return subprocess.run(
        [KVHOUSE, *REPLAY, *arguments],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_all_three_in_one_call(tmp_path):
    done = run(
        *("--policy", "contiguous-max,paged", "--json"),
        *("--html", "a.html", "--png", "a.png", "--svg", "a.svg"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{")
    assert names(tmp_path) == ["a.html", "a.png", "a.svg"]
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_a_name_without_an_ending_or_with_another_dot_is_taken(tmp_path):
    assert run("--html", "page-1.2", cwd=tmp_path).returncode == 0
    assert run("--html", "a.HTM", cwd=tmp_path).returncode == 0
    assert names(tmp_path) == ["a.HTM", "page-1.2"]


def test_the_figures_are_those_without_a_picture(tmp_path):
    with_picture = run("--json", "--html", "a.html", cwd=tmp_path)
    assert with_picture.stdout == run("--json", cwd=tmp_path).stdout


def test_a_page_names_the_trace_s_file_and_not_where_it_lies(tmp_path):
    folder = tmp_path / "secret place"
    folder.mkdir()
    device = folder / "own device.json"
    device.write_text(json.dumps(devices.get("a100-80g").to_dict()))
    trace = folder / "own trace.csv"
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n")
    done = subprocess.run(
        [
            *(KVHOUSE, "replay", trace, "--model", "llama-3-8b", "--device", device),
            *("--kv-blocks", "9", "--html", "a.html"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "a.html").read_text()
    assert "own trace.csv, model llama-3-8b, device own device.json." in page
    assert "secret place" not in page


FULL_AT_THE_END = """
import resource
from kvhouse.cli.output import whole_file
with whole_file("log", "event log") as write:
    write(b"a line that waits in a buffer")
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""


def test_a_file_that_cannot_be_finished_is_named_and_not_left(tmp_path):
    script = [sys.executable, "-c", FULL_AT_THE_END]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
    reason = "kvhouse.errors.KvhouseError: event log log: cannot be written: File too large"
    assert done.stderr.splitlines()[-1] == reason
    assert not list(tmp_path.iterdir())


def test_names_that_no_file_can_have(tmp_path):
    (tmp_path / "there").write_text("mine")
    for name, reason in (("there/", "is no name for a file"), ("n" * 300, "File name too long")):
        with pytest.raises(KvhouseError, match=reason), whole_file(f"{tmp_path}/{name}", "page"):
            pass
    assert (tmp_path / "there").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "."], "page '.': is no name for a file"),
        (["--png", "there"], "image 'there': is no name for a file"),
        (["--svg", "not/there/a.svg"], "drawing not/there/a.svg: cannot be written: No such file"),
        (["--html", "a.html", "--lang", "fr"], "language 'fr': choose one of en, zh"),
        (["--lang", "zh"], "--lang zh is for --html, --png and --svg\n"),
        (
            ["--png", "a.gif"],
            "--png a.gif: writes PNG, which is not called .gif: end the name in .png",
        ),
        (
            ["--svg", "a.PNG"],
            "--svg a.PNG: writes SVG, which is not called .png: end the name in .svg",
        ),
        (
            ["--html", "a.pdf"],
            "--html a.pdf: writes HTML, which is not called .pdf: end the name in ",
        ),
        (["--html", "a.html", "--find", "min-memory"], "--html, --png and --svg show one replay"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(tmp_path, arguments, message):
    (tmp_path / "there").mkdir()
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"kvhouse: {message}")
    assert done.stderr.count("\n") == 1
    assert names(tmp_path) == ["there"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "t.csv"], "--html t.csv: is read by this command: name another"),
        (["--events", "link"], "--events link: is read by this command: name another"),
        (["--svg", "./d.json"], "--svg ./d.json: is read by this command: name another"),
        (
            ["--png", "a", "--svg", "./a"],
            "--png and --svg both name ./a: give each a file of its own",
        ),
        (
            ["--plan-log", "a\x1b", "--html", "a\x1b"],
            r"--plan-log and --html both name 'a\x1b': give each a file of its own",
        ),
    ],
)
def test_no_file_is_written_over_one_that_is_needed(tmp_path, arguments, message):
    (tmp_path / "t.csv").write_text("arrival,prompt_tokens,output_tokens\n0,10,5\n")
    (tmp_path / "d.json").write_text(json.dumps(devices.get("a100-80g").to_dict()))
    (tmp_path / "link").symlink_to("t.csv")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    command = [KVHOUSE, "replay", "t.csv", "--model", "llama-3-8b", "--device", "d.json"]
    done = subprocess.run(
        [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, f"kvhouse: {message}\n")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_replay_that_fails_leaves_the_old_page(tmp_path):
    (tmp_path / "a.html").write_text("old")
    done = run("--html", "a.html", "--watermark", "2", cwd=tmp_path)
    assert done.returncode == 1
    assert (tmp_path / "a.html").read_text() == "old"
    assert names(tmp_path) == ["a.html"]


def test_without_matplotlib_only_images_are_refused(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "matplotlib.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join(filter(None, [str(hidden), os.environ.get("PYTHONPATH")]))
    done = run("--png", "a.png", cwd=tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (
        1,
        "kvhouse: images are drawn by matplotlib, which is not installed: "
        "pip install 'kvhouse[plots]'\n",
    )
    assert run("--html", "a.html", cwd=tmp_path, PYTHONPATH=path).returncode == 0
    assert names(tmp_path) == ["a.html", "hidden"]
