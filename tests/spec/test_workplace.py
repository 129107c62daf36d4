"""Folders of work in progress: what a killed process leaves goes, what a living one has stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvhouse.spec import workplace as module
from kvhouse.spec.workplace import workplace

SOURCE = Path(__file__).parents[2] / "src"
#: Makes a folder, writes into it, says so, and works on.
WORKER = """
import sys, time
from pathlib import Path
from kvhouse.spec.workplace import workplace

with workplace(Path(sys.argv[1]), ".making-") as work:
    (work / "half").write_bytes(b"half")
    print(work, flush=True)
    time.sleep(600)
"""


def worker(parent):
    """A process at work in a folder, and the folder."""
    started = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(parent)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    return started, Path(started.stdout.readline().strip())


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(tmp_path):
    (tmp_path / "model").mkdir()
    killed, left = worker(tmp_path)
    living, held = worker(tmp_path)
    with killed, living:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.is_dir()
        with workplace(tmp_path, ".making-") as mine:
            assert {*tmp_path.iterdir()} == {tmp_path / "model", held, mine}
            assert (held / "half").read_bytes() == b"half"
        living.kill()
    with workplace(tmp_path, ".making-"):
        assert not held.exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


def test_threads_of_one_process_do_not_hurt_each_other(tmp_path):
    """Each sees its own folder to the end, however many come and go beside it."""
    kept = []

    def work(number):
        for turn in range(20):
            with workplace(tmp_path, ".making-") as mine:
                (mine / "file").write_text(f"{number} {turn}")
                with workplace(tmp_path, ".making-"):
                    kept.append((mine / "file").read_text() == f"{number} {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert kept == [True] * 80
    assert list(tmp_path.iterdir()) == []


def test_only_folders_with_that_prefix_are_touched(tmp_path):
    (tmp_path / ".making-file").write_text("no folder")
    (tmp_path / ".other-folder").mkdir()
    (tmp_path / ".making-link").symlink_to(tmp_path / ".other-folder")
    (tmp_path / ".making-left").mkdir()
    with workplace(tmp_path, ".making-"):
        pass
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".making-file", ".other-folder", ".making-link"}


def test_where_there_are_no_locks_nothing_is_removed(tmp_path, monkeypatch):
    (tmp_path / ".making-left").mkdir()
    monkeypatch.setattr(module.os, "name", "another")
    with workplace(tmp_path, ".making-") as mine:
        assert mine.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [".making-left"]


def test_an_interrupted_block_leaves_nothing(tmp_path):
    def interrupted():
        with workplace(tmp_path, ".making-") as mine:
            (mine / "half").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
