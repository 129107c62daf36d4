"""The own format in every encoding, access logs, and files that are damaged on purpose."""

import csv
import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.errors import TraceError
from kvhouse.replayer.trace_text import MOST_LINE_BYTES
from kvhouse.replayer.trace_write import write_trace
from kvhouse.replayer.traces import TraceRequest, TraceStream, read_trace

ENCODINGS = ("jsonl", "csv", "parquet", "jsonl.gz", "csv.gz")
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20).filter(
    lambda name: name == name.strip()
)


@st.composite
def requests(draw: st.DrawFn) -> TraceRequest:
    prompt, output = draw(st.integers(1, 10**9)), draw(st.integers(1, 10**9))
    block = draw(st.integers(1, 1024))
    most = min(4, -(-(prompt + output) // block))
    ids = draw(st.lists(st.integers(0, 2**63 - 1), max_size=most))
    prefix = draw(st.none() | NAMES)
    return TraceRequest(
        draw(st.floats(0, 10**11)),
        prompt,
        output,
        tuple(ids),
        block if ids else 512,
        prefix,
        draw(st.integers(0, prompt)) if prefix else 0,
        draw(st.none() | NAMES),
        draw(st.integers(-(2**31), 2**31 - 1)),
        draw(st.integers(0, prompt)),
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(deadline=None)  # the first example imports pyarrow
@given(st.lists(requests(), min_size=1, max_size=5))
def test_what_is_written_is_read(tmp_path_factory, encoding, written):
    written.sort(key=lambda request: request.arrival)
    path = tmp_path_factory.mktemp("t") / f"trace.{encoding}"
    assert write_trace(written, path) == len(written)
    assert read_trace(path).requests == written
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_is_written_is_what_other_readers_see(tmp_path):
    first = TraceRequest(0.5, 20, 3, (7, 8), 16, "sys, 1", 4, "a", -1, 2)
    second = TraceRequest(1.25, 9, 1)
    for encoding in ENCODINGS[:3]:
        write_trace([first, second], tmp_path / f"t.{encoding}")
    lines = (tmp_path / "t.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {"arrival": 1.25, "prompt_tokens": 9, "output_tokens": 1}
    assert json.loads(lines[0]) == {
        "arrival": 0.5,
        "prompt_tokens": 20,
        "output_tokens": 3,
        "prefix_id": "sys, 1",
        "prefix_tokens": 4,
        "tenant": "a",
        "priority": -1,
        "hash_ids": [7, 8],
        "hash_block": 16,
        "cached_tokens": 2,
    }
    with (tmp_path / "t.csv").open(newline="") as file:
        row, plain = csv.DictReader(file)
    assert (row["prefix_id"], row["hash_ids"], row["priority"]) == ("sys, 1", "7 8", "-1")
    assert (plain["arrival"], plain["prefix_id"], plain["priority"]) == ("1.25", "", "")
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert table[0] == json.loads(lines[0])
    assert {name: value for name, value in table[1].items() if value is not None} == json.loads(
        lines[1]
    )


def test_a_published_trace_survives_conversion(tmp_path):
    for encoding in ENCODINGS:
        path = tmp_path / f"t.{encoding}"
        write_trace(TraceStream("mooncake-conv"), path)
        assert read_trace(path).requests == read_trace("mooncake-conv").requests


def test_packing_is_repeatable_and_really_packs(tmp_path):
    for name in ("a.csv.gz", "b.csv.gz", "c.csv"):
        write_trace(TraceStream("mooncake-conv"), tmp_path / name)
    packed = (tmp_path / "a.csv.gz").read_bytes()
    assert packed == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "c.csv").read_bytes()


def test_parquet_is_read_across_row_groups_and_batches(tmp_path):
    rows = 40_000
    table = pyarrow.table(
        {"arrival": range(rows), "prompt_tokens": [5] * rows, "output_tokens": range(1, rows + 1)}
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=700)
    read = read_trace(tmp_path / "t.parquet").requests
    assert [r.output_tokens for r in read] == list(range(1, rows + 1))
    assert read[-1].arrival == rows - 1


def test_a_failed_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("old")

    def damaged():
        yield TraceRequest(0.0, 1, 1)
        raise TraceError("the trace ends here")

    with pytest.raises(TraceError, match="ends here"):
        write_trace(damaged(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("t.txt", r"must end with \.jsonl, \.csv"),
        ("t.parquet.gz", "must end with"),
        ("jsonl", "must end with"),
        ("nowhere/t.csv", "cannot be written: No such file"),
        ("folder.csv", "is no name for a file"),
    ],
)
def test_where_nothing_can_be_written(tmp_path, name, reason):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(TraceError, match=reason):
        write_trace([TraceRequest(0.0, 1, 1)], tmp_path / name)


HEADER = "arrival,prompt_tokens,output_tokens,tenant\n"
ROW = {"arrival": 1, "prompt_tokens": 8, "output_tokens": 2}


def row(**fields) -> str:
    return json.dumps(ROW | fields)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (HEADER, "holds no request"),
        ("arrival,prompt_tokens\n", "line 1: column output_tokens is missing"),
        (HEADER.replace("tenant", "model"), "line 1: column 'model' is unknown"),
        (HEADER.replace("tenant", "arrival"), "line 1: column arrival is there twice"),
        (HEADER + "1,1,1\n", "line 2: 3 fields under a header of 4"),
        (HEADER + "nan,1,1,\n", "line 2: arrival is 'nan'"),
        (HEADER + "-1,1,1,\n", "line 2: arrival is '-1'"),
        (HEADER + "1e12,1,1,\n", "line 2: arrival is '1e12'"),
        (HEADER + ",1,1,\n", "line 2: arrival is missing"),
        (HEADER + "1,1.5,1,\n", "line 2: prompt_tokens is '1.5'"),
        (HEADER + "1,0,1,\n", "line 2: prompt_tokens is '0'"),
        (HEADER + f"1,{'9' * 9000},1,\n", "line 2: prompt_tokens is '999"),
        (HEADER + '1,1,1,"a\n', "line 2: not a row of CSV"),
        (HEADER + f"1,1,1,{'t' * 201}\n", "line 2: tenant is 'ttt"),
        (HEADER + "1,1,1,a\x07b\n", r"line 2: tenant is 'a\\x07b'"),
        (HEADER + "2,1,1,\n1,1,1,\n", "line 3: arrives before"),
        (HEADER.replace("tenant", "hash_ids") + "1,1,1,1 x\n", r"line 2: hash_ids is \[1, 'x'\]"),
        (HEADER.replace("tenant", "hash_ids") + "1,1,1,٣\n", "line 2: hash_ids is"),
        (HEADER.replace("tenant", "hash_ids") + "1,1,1,1\n", "line 2: hash_ids need hash_block"),
        (row(model="m"), "line 1: 'model' is unknown"),
        (row(arrival="1"), "line 1: arrival is '1'"),
        (row(arrival=True), "line 1: arrival is True"),
        (row(arrival=float("nan")), "line 1: arrival is nan"),
        (row(output_tokens=2.0), "line 1: output_tokens is 2.0"),
        (row(output_tokens=True), "line 1: output_tokens is True"),
        (row(output_tokens=10**10), "line 1: output_tokens is 10000000000"),
        (row(prefix_id="a"), "line 1: prefix_id and prefix_tokens go together"),
        (row(prefix_tokens=3), "line 1: prefix_id and prefix_tokens go together"),
        (row(prefix_id="a", prefix_tokens=9), "line 1: prefix_tokens .* exceed"),
        (row(cached_tokens=9), "line 1: prefix_tokens or cached_tokens exceed"),
        (row(tenant=7), "line 1: tenant is 7"),
        (row(tenant=""), "line 1: tenant is ''"),
        (row(priority=2**31), "line 1: priority is 2147483648"),
        (row(hash_ids=[1, 2, 3], hash_block=5), "line 1: 3 hash_ids are more than"),
        (row(hash_ids=[2**63], hash_block=5), "line 1: hash_ids.0 is 9223372036854775808"),
        (row(hash_ids=[-1], hash_block=5), "line 1: hash_ids.0 is -1"),
        (row(hash_ids=[1], hash_block=0), "line 1: hash_block is 0"),
        (row() + "\n[]", "line 2: not a JSON object"),
        (row() + "\n" + '{"arrival":' * 9000, "line 2: not a JSON object"),
        (row() + "\n" + row(arrival=0), "line 2: arrives before"),
        ('{"what": 1}', "line 1: a JSON object without arrival"),
        (gzip.compress(HEADER.encode() * 900)[:40], "cannot be read: Compressed file ended"),
        (b"\x1f\x8b\x08\x00nonsense that is not packed", "cannot be read"),
        (gzip.compress(b"7" * 2**25), f"line 1: longer than {MOST_LINE_BYTES:,} bytes"),
        (b"\x28\xb5\x2f\xfd and more", "is packed with zstd"),
        (b"PAR1" + b"x" * 99, "cannot be read as Parquet"),
    ],
)
def test_what_is_refused(tmp_path, content, reason):
    path = tmp_path / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TraceError, match=reason) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"arrival": [0.0], "prompt_tokens": [1]}, "column output_tokens is missing"),
        (ROW | {"x": 1}, "column 'x' is unknown"),
        (ROW | {"prompt_tokens": "1"}, "row 1: prompt_tokens is '1'"),
        (ROW | {"prompt_tokens": None}, "row 1: prompt_tokens is missing"),
        (ROW | {"arrival": float("inf")}, "row 1: arrival is inf"),
        (ROW | {"arrival": [1.0, 0.0]}, "row 2: arrives before"),
        (ROW | {"arrival": []}, "holds no request"),
    ],
)
def test_parquet_that_is_refused(tmp_path, columns, reason):
    lists = {key: value if isinstance(value, list) else [value] for key, value in columns.items()}
    rows = len(lists["arrival"])
    table = pyarrow.table({key: (value * rows)[:rows] for key, value in lists.items()})
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(TraceError, match=reason) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


CHAT = {"created": 1711652795, "usage": {"prompt_tokens": 22, "completion_tokens": 2}}


def log(tmp_path, *entries) -> TraceStream:
    path = tmp_path / "access.log"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return TraceStream(path)


def test_access_logs_in_the_shapes_of_the_api(tmp_path):
    usage = CHAT["usage"] | {"prompt_tokens_details": {"cached_tokens": 16, "audio_tokens": 0}}
    entries = [
        CHAT | {"object": "chat.completion", "model": "m", "usage": usage},
        {  # the Responses API
            "created_at": 1711652796.5,
            "usage": {
                "input_tokens": 30,
                "input_tokens_details": {"cached_tokens": 8},
                "output_tokens": 4,
            },
        },
        {"timestamp": "2024-03-28T19:06:38.25Z", "response": {"usage": CHAT["usage"]}, "user": "u"},
        {
            "custom_id": "b",
            "response": {"status_code": 200, "body": CHAT | {"created": 1711652799}},
        },
        {"time": 1711652800250, "tenant": "t", "usage": CHAT["usage"]},  # milliseconds
    ]
    stream = log(tmp_path, *entries)
    assert list(stream) == [
        TraceRequest(0.0, 22, 2, cached_tokens=16),
        TraceRequest(1.5, 30, 4, cached_tokens=8),
        TraceRequest(3.25, 22, 2, tenant="u"),
        TraceRequest(4.0, 22, 2),
        TraceRequest(5.25, 22, 2, tenant="t"),
    ]
    assert (stream.format, stream.tally.skipped) == ("access-log", 0)


def test_an_access_log_is_put_in_order_and_its_failures_are_counted(tmp_path):
    stream = log(
        tmp_path,
        CHAT | {"created": 12},
        CHAT | {"created": 10},
        {"created": 11, "error": {"message": "too long"}},
        CHAT | {"created": 11, "usage": {"prompt_tokens": 5, "completion_tokens": 0}},
        {"created": 11, "usage": {"prompt_tokens": 5, "total_tokens": 5}},  # an embedding
        CHAT | {"created": 11},
    )
    assert [request.arrival for request in stream] == [0.0, 1.0, 2.0]
    assert stream.tally.skipped == 3
    assert list(stream) == list(stream)
    assert stream.tally.skipped == 3


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"created": 1}, "has neither usage nor error"),
        ({"usage": CHAT["usage"]}, "has no time: none of created, created_at, timestamp, time"),
        (CHAT | {"created": "soon"}, "the time is 'soon'"),
        (CHAT | {"created": -1}, "the time is -1"),
        (CHAT | {"created": float("nan")}, "the time is nan"),
        (CHAT | {"created": 1e300}, "the time is 1e"),
        (CHAT | {"usage": 5}, "usage is 5"),
        (CHAT | {"usage": {"prompt_tokens": -5}}, "usage.prompt_tokens is -5"),
        (CHAT | {"usage": {"prompt_tokens": "5"}}, "usage.prompt_tokens is '5'"),
        (CHAT | {"usage": {"completion_tokens": 5}}, "usage.prompt_tokens is missing"),
        (
            CHAT | {"usage": CHAT["usage"] | {"prompt_tokens_details": {"cached_tokens": 23}}},
            "cached_tokens 23 exceed prompt_tokens 22",
        ),
    ],
)
def test_access_logs_that_are_refused(tmp_path, entry, reason):
    with pytest.raises(TraceError, match=f"line 2: {reason}"):
        list(log(tmp_path, CHAT, entry))


def test_a_log_may_be_out_of_order_by_the_window_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr("kvhouse.replayer.trace_formats.LOG_WINDOW", 3)
    late = [CHAT | {"created": created} for created in (5, 6, 7, 4, 8, 9, 10)]
    assert [request.arrival for request in log(tmp_path, *late)] == [0, 1, 2, 3, 4, 5, 6]
    late.insert(7, CHAT | {"created": 3})
    with pytest.raises(TraceError, match="line 8: over 3 lines too late: sort the file"):
        list(log(tmp_path, *late))
