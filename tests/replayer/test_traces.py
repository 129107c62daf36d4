"""Trace readers against the csv and json modules, and against damaged files."""

import csv
import json
import math
from datetime import datetime
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.errors import TraceError
from kvhouse.replayer.traces import Trace, TraceRequest, bundled_names, read_trace

DATA = Path(str(files("kvhouse").joinpath("data", "traces")))
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46.6805900,374,44\n"
ENTRY = '{"timestamp": 5, "input_length": 7, "output_length": 3, "hash_ids": [1]}\n'


def test_azure_slice_as_the_csv_module_reads_it():
    with (DATA / "azure-conv-2023.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    trace = read_trace("azure-conv-2023")
    assert len(trace.requests) == len(rows) == 512
    start = None
    for row, request in zip(rows, trace.requests, strict=True):
        whole, _, fraction = row["TIMESTAMP"].partition(".")
        moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S")
        seconds = (moment - datetime(2023, 1, 1)).total_seconds()
        exact = int(seconds) + Fraction(int(fraction), 10**7)
        start = exact if start is None else start
        assert request.arrival == pytest.approx(float(exact - start), abs=1e-9)
        assert request.prompt_tokens == int(row["ContextTokens"])
        assert request.output_tokens == int(row["GeneratedTokens"])
        assert request.hash_ids == ()
    assert (trace.name, trace.cut) == ("azure-conv-2023", 0)


def test_mooncake_slice_as_the_json_module_reads_it():
    entries = [json.loads(line) for line in (DATA / "mooncake-conv.jsonl").read_text().splitlines()]
    trace = read_trace("mooncake-conv")
    assert len(entries) == 64
    assert [
        {
            "timestamp": round(request.arrival * 1000),
            "input_length": request.prompt_tokens,
            "output_length": request.output_tokens,
            "hash_ids": list(request.hash_ids),
        }
        for request in trace.requests
    ] == entries
    for request in trace.requests:
        assert len(request.hash_ids) == -(-request.prompt_tokens // 512)


def test_bundled_names_are_the_files_with_a_source():
    named = {path.stem for path in DATA.iterdir() if path.suffix in {".csv", ".jsonl"}}
    assert set(bundled_names()) == named
    readme = (DATA / "README.md").read_text()
    for path in DATA.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in readme


def write(tmp_path, content, name="trace.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "requests"),
    [
        pytest.param(HEADER + ROW, [(0.0, 374, 44)], id="azure"),
        pytest.param((HEADER + ROW.strip()).replace("\n", "\r\n"), [(0.0, 374, 44)], id="crlf"),
        pytest.param("\ufeff" + HEADER + ROW + "\n\n", [(0.0, 374, 44)], id="bom-and-blank"),
        pytest.param(
            HEADER + "2024-05-10 00:00:00.009930+00:00,1,2\n2024-05-10T01:00:01Z,3,4",
            [(0.0, 1, 2), (3600.99007, 3, 4)],
            id="azure-2024",
        ),
        pytest.param(
            HEADER + "2024-05-10 01:00:00+01:00,1,2\n2024-05-10 00:00:00.5,3,4",
            [(0.0, 1, 2), (0.5, 3, 4)],
            id="offset",
        ),
        pytest.param(ENTRY + ENTRY.replace("5", "1505.5"), [(0.0, 7, 3), (1.5005, 7, 3)], id="ms"),
        pytest.param(
            '{"output_length":3,"input_length":7,"timestamp":0}', [(0.0, 7, 3)], id="no-hash-ids"
        ),
    ],
)
def test_what_is_read(tmp_path, content, requests):
    read = read_trace(write(tmp_path, content)).requests
    assert [(r.arrival, r.prompt_tokens, r.output_tokens) for r in read] == requests


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (HEADER, "holds no request"),
        ("a,b,c\n1,2,3\n", r"line 1: neither the header TIMESTAMP.* nor a JSON object"),
        (HEADER + ROW + "2023-11-16 18:15:47,374\n", "line 3: 2 fields"),
        (HEADER + ROW.strip() + ",1\n", "line 2: 4 fields"),
        (HEADER + "2023-11-16 18:15:47,many,44\n", "line 2: ContextTokens is 'many'"),
        (HEADER + "2023-11-16 18:15:47,1.5,44\n", "line 2: ContextTokens is '1.5'"),
        (HEADER + "2023-11-16 18:15:47,1_0,44\n", "line 2: ContextTokens is '1_0'"),
        (HEADER + "2023-11-16 18:15:47,٣,44\n", "line 2: ContextTokens is '٣'"),
        (HEADER + "2023-11-16 18:15:47,-5,44\n", "line 2: ContextTokens is -5: must be from 1"),
        (HEADER + "2023-11-16 18:15:47,0,44\n", "line 2: ContextTokens is 0: must be from 1"),
        (HEADER + "2023-11-16 18:15:47,5,0\n", "line 2: GeneratedTokens is 0: must be from 1"),
        (HEADER + "2023-11-16 18:15:47,5,\n", "line 2: GeneratedTokens is ''"),
        (HEADER + f"2023-11-16 18:15:47,{10**10},4\n", "line 2: ContextTokens is 10000000000"),
        (HEADER + f"2023-11-16 18:15:47,{'9' * 9000},4\n", "line 2: ContextTokens is '99"),
        (HEADER + "yesterday,5,5\n", "line 2: TIMESTAMP is 'yesterday'"),
        (HEADER + "2023-13-16 18:15:47,5,5\n", "line 2: TIMESTAMP is '2023-13-16 18:15:47'"),
        (HEADER + ROW + ROW.replace("18:15:46", "18:15:45"), "line 3: arrives before"),
        (HEADER + ROW + "x\0y\n", "line 3: holds a NUL byte"),
        (HEADER.encode() + b"\xff\xfe\n", "line 2: not UTF-8"),
        (HEADER + ROW + "7" * 2_000_000, "line 3: longer than 1,048,576 bytes"),
        ("{not json}\n", "line 1: not a JSON object"),
        (ENTRY + "[1, 2]\n", "line 2: not a JSON object"),
        (ENTRY + ENTRY[:30], "line 2: not a JSON object"),
        ("{" + '"a":[' * 100_000 + "\n", "line 1: not a JSON object"),
        (ENTRY.replace('"timestamp"', '"time"'), "line 1: timestamp is missing"),
        (ENTRY.replace('"output_length": 3, ', ""), "line 1: output_length is missing"),
        (ENTRY.replace("7", "0"), "line 1: input_length is 0: must be from 1"),
        (ENTRY.replace("7", "-7"), "line 1: input_length is -7"),
        (ENTRY.replace("7", "true"), "line 1: input_length is True"),
        (ENTRY.replace("7", '"7"'), "line 1: input_length is '7'"),
        (ENTRY.replace("7", "7.0"), "line 1: input_length is 7.0"),
        (ENTRY.replace("5", "-5"), "line 1: timestamp is -5"),
        (ENTRY.replace("5", "NaN"), "line 1: timestamp is nan"),
        (ENTRY.replace("5", "1e400"), "line 1: timestamp is inf"),
        (ENTRY.replace("[1]", "[-1]"), r"line 1: hash_ids is \[-1\]"),
        (ENTRY.replace("[1]", "null"), "line 1: hash_ids is None"),
        (ENTRY + ENTRY.replace("5", "4"), "line 2: arrives before"),
    ],
)
def test_what_is_refused(tmp_path, content, reason):
    path = write(tmp_path, content)
    with pytest.raises(TraceError, match=reason) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_sources_that_cannot_be_opened(tmp_path):
    with pytest.raises(TraceError, match="no trace nowhere: give a file or one of azure-conv-2023"):
        read_trace("nowhere")
    with pytest.raises(TraceError, match=r"or describe traffic, such as poisson:.*") as caught:
        read_trace("even:rate=2")
    assert len(read_trace(str(caught.value).rpartition(" ")[2]).requests) == 100
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    with pytest.raises(
        TraceError, match="trace /proc/self/mem: cannot be read: Input/output error"
    ):
        read_trace("/proc/self/mem")  # which can be opened, and not be read at its beginning
    with pytest.raises(TraceError, match="cannot be read: embedded null byte"):
        read_trace("a\0b")


@pytest.mark.parametrize("arrival", [math.nan, math.inf, -math.inf])
def test_requests_that_never_arrive(arrival):
    with pytest.raises(TraceError, match=r"request 1 arrives at .*: give seconds"):
        Trace("given", [TraceRequest(0.0, 1, 1), TraceRequest(arrival, 1, 1)])


def test_limit_stops_before_the_damage(tmp_path):
    path = write(tmp_path, HEADER + ROW * 3 + "rubbish\n")
    assert len(read_trace(path, limit=3).requests) == 3
    with pytest.raises(TraceError, match="line 5"):
        read_trace(path, limit=4)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"limit": 0}, "limit 0"),
        ({"scale_lengths": 0.0}, "scale_lengths 0.0"),
        ({"scale_lengths": float("nan")}, "scale_lengths nan"),
        ({"scale_lengths": 1e300}, r"scale_lengths 1e\+300: give a finite factor above 0, at most"),
        ({"scale_lengths": 1e8}, "over 1,000,000,000 tokens"),
        ({"max_length": 1}, "cut to 1: a request has"),
    ],
)
def test_options_out_of_range(option, reason):
    with pytest.raises(TraceError, match=reason):
        read_trace("mooncake-conv", **option)


def test_scaling_rounds_half_up_and_keeps_a_token(tmp_path):
    rows = "".join(f"2023-11-16 18:15:46,{n},{n}\n" for n in (1, 2, 3, 10, 11))
    read = read_trace(write(tmp_path, HEADER + rows), scale_lengths=0.25)
    # quarters: 0.25 and 0.5 and 0.75 give 1, 2.5 gives 3, 2.75 gives 3
    assert [r.prompt_tokens for r in read.requests] == [1, 1, 1, 3, 3]
    assert [r.output_tokens for r in read.requests] == [1, 1, 1, 3, 3]
    assert read.scale_lengths == 0.25


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=20),
    st.integers(2, 2000),
)
def test_cutting_is_counted_and_spares_the_output(tmp_path_factory, lengths, max_length):
    rows = "".join(f"2023-11-16 18:15:46,{prompt},{out}\n" for prompt, out in lengths)
    read = read_trace(write(tmp_path_factory.mktemp("t"), HEADER + rows), max_length=max_length)
    assert read.cut == sum(prompt + out > max_length for prompt, out in lengths)
    for (prompt, out), request in zip(lengths, read.requests, strict=True):
        if prompt + out <= max_length:
            assert request == TraceRequest(0.0, prompt, out)
        else:
            assert request.prompt_tokens + request.output_tokens == max_length
            assert request.output_tokens == min(out, max_length - 1)
