"""Ctrl-C during a replay leaves what was replayed, and a terminal sees how far it is."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvhouse.cli import main
from kvhouse.cli import progress as bars

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
ENVIRONMENT = os.environ | {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "xterm"}
#: Takes minutes: a model with chunked attention is stepped.
LONG = "poisson:rate=20,prompt=uniform(1,600),output=uniform(1,600),requests=20000"
REPLAY = ["replay", LONG, "--model", "llama-4-scout", "--kv-blocks", "20000", "--device", "mi355x"]


def interrupted(arguments, folder, begun, stderr=subprocess.PIPE):
    """Start a command, send SIGINT once ``begun`` says so; code, stdout and stderr."""
    with subprocess.Popen(
        [KVHOUSE, *arguments],
        env=ENVIRONMENT,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            while not begun():
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=100)
        finally:
            process.kill()  # where it has not ended by itself
    return process.returncode, output, errors


def finished_in(folder):
    """Whether the event log that is being written in a folder knows a request that finished."""
    logs = list(folder.glob(".log*"))
    return logs and b'"finished"' in logs[0].read_bytes()


def test_ctrl_c_leaves_a_partial_result(tmp_path):
    arguments = [*REPLAY, "--events", "log.jsonl", "--html", "page.html", "--json"]
    code, output, errors = interrupted(arguments, tmp_path, lambda: finished_in(tmp_path))
    assert code == 130
    data = json.loads(output)
    assert data["partial"] is True
    assert 0 < data["finished"] < data["scenario"]["requests"] == 20_000
    assert data["finished"] <= data["submitted"]
    assert data["makespan_seconds"] > 0
    told, last = errors.splitlines()
    assert f"ended early with {data['finished']:,} of 20,000 requests finished" in told
    assert last == "kvhouse: interrupted"
    # Files say by their names that they are not whole, and the log agrees with the result.
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["log.jsonl.partial", "page.html.partial"]
    assert "partial, ended early" in (tmp_path / "page.html.partial").read_text()
    lines = (tmp_path / "log.jsonl.partial").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert sum(event["event"] == "finished" for event in events) == data["finished"]
    last_time = max(event["time"] for event in events if event["event"] == "finished")
    assert last_time <= data["makespan_seconds"] * (1 + 1e-9)


def test_ctrl_c_leaves_a_partial_table(tmp_path):
    code, output, _ = interrupted(
        [*REPLAY, "--events", "log.jsonl"], tmp_path, lambda: finished_in(tmp_path)
    )
    assert code == 130
    assert "PARTIAL, ended early" in output
    assert "of 20,000" not in output  # finished of those that arrived
    assert "requests finished" in output


class Terminal:
    """What a process writes to a terminal."""

    def __init__(self):
        self.end, self.given = pty.openpty()
        self.text = ""

    def read(self, seconds=1.0):
        """Read on; whoever waits for a process looks in between whether it still runs."""
        if select.select([self.end], [], [], seconds)[0]:
            self.text += os.read(self.end, 4096).decode(errors="replace")

    def shows(self, label):
        """Whether there is a bar of this name, with a rate; it reads on each time it is asked."""

        def shown():
            self.read()
            return "requests/s" in self.text.partition(f"{label} ")[2]

        return shown

    def rest(self):
        """What a process that has ended wrote."""
        os.write(self.given, b"\x04")
        while "\x04" not in self.text:
            self.read()
        return self.text

    def close(self):
        os.close(self.given)
        os.close(self.end)


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_a_terminal_sees_rate_and_remaining_time_and_a_comparison_ends_early(tmp_path, terminal):
    arguments = [*REPLAY, "--compare", "--policy", "contiguous-oracle,paged"]
    code, output, _ = interrupted(arguments, tmp_path, terminal.shows("replays"), terminal.given)
    assert code == 130
    bar = terminal.text.partition("replays ")[2]
    assert "/40000" in bar
    assert "left" in bar
    assert "PARTIAL, ended early" in output


def test_a_search_that_found_nothing_yet_is_said_to(tmp_path, terminal):
    arguments = [*REPLAY[:4], "--find", "min-memory"]
    code, output, _ = interrupted(arguments, tmp_path, terminal.shows("min-memory"), terminal.given)
    assert (code, output) == (130, "")
    text = " ".join(terminal.rest().split())
    assert "min-memory: stopped before any setting held; blocks tried: none" in text
    assert "kvhouse: interrupted" in text


def test_remedies_say_how_far_they_are_and_keep_what_was_replayed_whole(tmp_path, terminal):
    """The bar moves within a replay, so what is left is known before the first one is done."""
    trace = "poisson:rate=20,prompt=uniform(1,600),output=uniform(1,600),requests=1000"
    arguments = ["remedies", trace, *REPLAY[2:], "--pairs", "0"]

    def begun():
        """Base and limit are known."""
        terminal.read()
        return re.search(r" [23]/10 [\d.]+ replays/s \d:\d\d:\d\d left", terminal.text)

    code, output, _ = interrupted(arguments, tmp_path, begun, terminal.given)
    assert code == 130
    assert re.search(r" [01]/10 [\d.]+ replays/s \d:\d\d:\d\d left", terminal.text)
    assert re.match(r"PARTIAL, ended after [23] replays: 1,000 requests of", output)
    assert re.search(r"As far as it was replayed: |No remedy was replayed yet\.", output)


def show_of(monkeypatch, *, tty, **options):
    """What a bar over three items writes."""
    shown = []

    def show(*arguments):
        label, unit, counter, _ = arguments
        shown.append((label, unit, counter.total))

    monkeypatch.setattr(bars, "_show", show)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: tty, raising=False)
    with bars.progress("label", 3, **options) as count:
        for item in range(3):
            count(item)
    assert count.done == 3
    return shown


def test_there_is_no_bar_for_programs(monkeypatch, capfd):
    del capfd  # so that stdout is a file
    assert show_of(monkeypatch, tty=True) == [("label", "requests", 3)]
    assert show_of(monkeypatch, tty=True, as_json=True) == [("label", "requests", 3)]
    assert show_of(monkeypatch, tty=False) == []
    monkeypatch.setattr(bars, "_into_a_pipe", lambda: True)
    assert show_of(monkeypatch, tty=True, as_json=True) == []
    assert show_of(monkeypatch, tty=True) == [("label", "requests", 3)]


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [
        (0, None, "0 replays/s 0:00:08 so far"),
        (0, 10, "0 replays/s -:--:-- left"),
        (2.5, 10, "0.312 replays/s 0:00:24 left"),  # 3.2 s for each of 7.5
        (4000, 8000, "500 replays/s 0:00:08 left"),
        (11, 10, "1.38 replays/s 0:00:00 left"),  # an estimate that was too low
    ],
)
def test_what_is_left_is_known_as_soon_as_the_whole_is(done, total, text):
    assert bars.speed_text(done, total, 8.0, "replays") == text


def test_a_second_ctrl_c_is_the_usual_one():
    before = signal.getsignal(signal.SIGINT)
    with bars.interruptible() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_ctrl_c_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with bars.interruptible() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_before_a_command_has_begun_is_one_line(monkeypatch, capsys):
    """Putting the commands together takes a third of a second, in which click is not at work."""

    def interrupt(*_arguments, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupt)
    monkeypatch.setattr("kvhouse.cli._leave_on_sigterm", lambda: None)  # leave pytest its own
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    assert capsys.readouterr().err == "kvhouse: interrupted\n"


@pytest.mark.parametrize(("ignored", "code"), [(False, -signal.SIGINT), (True, 0)])
def test_ctrl_c_while_the_command_line_is_imported_says_nothing(tmp_path, ignored, code):
    """``click`` is one of the first modules that it imports; nobody whom Ctrl-C spares ends."""
    (tmp_path / "click.py").write_text(
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "raise SystemExit(0)\n"
    )  # fmt: skip
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if ignored else ""
    program = f"{ignore}from kvhouse.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_python_m_is_the_command():
    command = [sys.executable, "-m", "kvhouse", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kvhouse ")
