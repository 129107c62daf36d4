"""The results file and its journal: what was added is there, whatever happened since."""

from __future__ import annotations

import fcntl
import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.errors import KvhouseError
from kvhouse.replayer.sweep.journal import opened
from kvhouse.replayer.sweep.row import Row
from kvhouse.replayer.sweep.store import opened_store

FACTS = {"version": "1", "trace": "abc", "model m": "x"}


def row(number, status="done", **figures):
    return Row(f"key {number}", "m", "d", "paged", "bf16", 16, 0.1, status, "", **figures)


ROWS = [row(1, steps=3, makespan_seconds=0.1 + 0.2), row(2, "impossible"), row(3, "failed")]


def filled(path, rows, *, finish=True, facts=FACTS):
    """Add rows in a run of its own, which is killed before it ends where it does not finish."""
    with opened_store(path, facts) as store:
        there = list(store.rows.values())
        for one in rows:
            store.add(one)
        if finish:
            store.finish([one.key for one in rows])
    return there


def test_rows_come_back_as_they_were(tmp_path):
    out, journal = tmp_path / "r.parquet", tmp_path / "r.parquet.journal"
    assert filled(out, ROWS[:1], finish=False) == []
    assert not out.exists()
    assert journal.exists()
    assert filled(out, ROWS[1:2], finish=False) == ROWS[:1]
    assert filled(out, ROWS[2:]) == ROWS[:2]
    assert list(tmp_path.iterdir()) == [out]
    # Those that were named when it was finished come first.
    assert filled(out, []) == [ROWS[2], *ROWS[:2]]
    again = row(3, steps=9)
    assert filled(out, [again], finish=False) == [ROWS[2], *ROWS[:2]]
    assert filled(out, []) == [again, *ROWS[:2]]


def test_a_run_that_adds_nothing_leaves_nothing(tmp_path):
    assert filled(tmp_path / "r.parquet", [], finish=False) == []
    assert list(tmp_path.iterdir()) == []


@given(cut=st.integers(0, 10_000))
def test_a_torn_line_is_the_only_one_that_is_lost(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("torn")
    out, journal = folder / "r.parquet", folder / "r.parquet.journal"
    filled(out, ROWS, finish=False)
    whole = journal.read_bytes()
    journal.write_bytes(whole[: cut % (len(whole) + 1)])
    complete = journal.read_bytes().count(b"\n")
    assert filled(out, [ROWS[2]], finish=False) == ROWS[: max(0, complete - 1)]
    assert filled(out, [])[-1] == ROWS[2]
    assert list(folder.iterdir()) == [out]


def test_a_journal_of_another_sweep_is_refused_and_kept(tmp_path):
    out, journal = tmp_path / "r.parquet", tmp_path / "r.parquet.journal"
    filled(out, ROWS, finish=False)
    before = journal.read_bytes()
    with pytest.raises(KvhouseError, match="with another version: name another file"):
        filled(out, [], facts={**FACTS, "version": "2"})
    with pytest.raises(KvhouseError, match="with another model m"):
        filled(out, [], facts={**FACTS, "model m": "y"})
    with pytest.raises(KvhouseError, match="with another new option"):
        filled(out, [], facts={**FACTS, "new option": "1"})
    assert journal.read_bytes() == before
    # Another model joins; then both are known.
    assert filled(out, [], facts={**FACTS, "model n": "y"}) == ROWS
    with pytest.raises(KvhouseError, match="with another model n"):
        filled(out, [], facts={**FACTS, "model n": "z"})


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet\n" * 10])
def test_a_file_that_is_something_else_is_refused_and_kept(tmp_path, content):
    out = tmp_path / "r.parquet"
    out.write_bytes(content)
    with pytest.raises(KvhouseError, match="is no results file of a sweep"):
        filled(out, [])
    assert out.read_bytes() == content
    assert list(tmp_path.iterdir()) == [out]


def test_without_pyarrow_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    """And nothing else: the results of a sweep have no other format."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(KvhouseError) as refused:
        filled(tmp_path / "r.parquet", [])
    assert str(refused.value) == "Parquet needs pyarrow: pip install 'kvhouse[parquet]'"
    assert list(tmp_path.iterdir()) == []


def test_a_trace_is_no_results_file(tmp_path):
    from kvhouse.replayer import read_trace
    from kvhouse.replayer.trace_write import write_trace

    out = tmp_path / "trace.parquet"
    write_trace(read_trace("azure-conv-2023", limit=3).requests, out)
    with pytest.raises(KvhouseError, match="is no results file of a sweep"):
        filled(out, [])


#: A journal's first line may be torn; what begins otherwise is none.
FOREIGN = [b"text\n", b"text", b"[]\n", b"1\n", b"null\n", b"\xff\xfe", b"[" * 10_000 + b"\n"]
FACTS_LINE = json.dumps(FACTS).encode() + b"\n"


@pytest.mark.parametrize(
    "content", [*FOREIGN, *(FACTS_LINE + end for end in FOREIGN if b"\n" in end)]
)
def test_a_journal_of_anything_else_is_refused_and_kept(tmp_path, content):
    journal = tmp_path / "r.parquet.journal"
    journal.write_bytes(content)
    with pytest.raises(KvhouseError, match="is no journal of a sweep"):
        filled(tmp_path / "r.parquet", ROWS)
    assert journal.read_bytes() == content


WRONG = [
    {"key": []},
    {"key": None},
    {"model": 5},
    {"status": "weird"},
    {"steps": "many"},
    {"steps": 2**70},
    {"steps": True},
    {"makespan_seconds": "long"},
    {"makespan_seconds": math.nan},
    {"unknown": 1},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_row_with_a_value_of_another_kind_is_refused(tmp_path, wrong):
    journal = tmp_path / "r.parquet.journal"
    journal.write_bytes(FACTS_LINE + json.dumps(ROWS[0].to_dict() | wrong).encode() + b"\n")
    with pytest.raises(KvhouseError, match="is no results file of a sweep"):
        filled(tmp_path / "r.parquet", ROWS)


def test_a_journal_that_its_last_user_removes_meanwhile_is_made_anew(tmp_path, monkeypatch):
    """Between opening and locking: whoever waits must not write to a file without a name."""
    journal, locked = tmp_path / "r.parquet.journal", fcntl.flock
    removals = iter([journal])

    def removed_first(*asked):
        for path in removals:
            path.unlink()
        locked(*asked)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with opened(journal) as mine:
        mine.add({"a": 1})
        assert journal.read_bytes() == b'{"a": 1}\n'


def test_a_journal_that_is_something_else_is_refused_and_kept(tmp_path):
    journal = tmp_path / "r.parquet.journal"
    journal.write_text("dear diary\nit rained\n")
    with pytest.raises(KvhouseError, match="is no journal of a sweep"):
        filled(tmp_path / "r.parquet", [])
    assert journal.read_text() == "dear diary\nit rained\n"


def test_two_processes_do_not_write_one_file(tmp_path):
    out = tmp_path / "r.parquet"
    script = (
        "import sys\n"
        "from kvhouse.replayer.sweep.store import opened_store\n"
        "with opened_store(sys.argv[1], {}) as store:\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, out], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(KvhouseError, match="another sweep is writing this file"):
            filled(out, [])
        other.communicate()
    assert filled(out, [], finish=False) == []


def test_a_full_disk_is_said_and_what_was_added_before_stays(tmp_path):
    """A limit on the size of files stands for the disk."""
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from kvhouse.replayer.sweep.journal import opened\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with opened(Path(sys.argv[1])) as journal:\n"
        "    for number in range(1000):\n"
        "        journal.add({'number': number})\n"
    )
    path = tmp_path / "journal"
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=False
    )
    assert "KvhouseError" in done.stderr
    assert "cannot be written: File too large" in done.stderr
    with opened(path) as journal:
        assert len(journal.lines) > 50
        assert journal.lines == [{"number": number} for number in range(len(journal.lines))]


def test_a_device_is_no_journal(tmp_path):
    link = tmp_path / "r.parquet.journal"
    link.symlink_to("/dev/zero")
    with pytest.raises(KvhouseError, match="is no journal of a sweep"):
        filled(tmp_path / "r.parquet", [])
    assert link.is_symlink()
