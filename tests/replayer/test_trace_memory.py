"""Long traces take little memory, and streams take none that grows with the trace."""

import tracemalloc

import pytest

from kvhouse.replayer.describe import describe
from kvhouse.replayer.trace_table import TraceTable
from kvhouse.replayer.trace_write import write_trace
from kvhouse.replayer.traces import TraceRequest, TraceStream, read_trace

MIB = 2**20


def peak(action) -> int:
    """The most bytes that an action allocated, after what a first run of it keeps for good."""
    action()
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["jsonl", "csv.gz", "parquet"])
def test_a_conversion_holds_no_trace(tmp_path, encoding):
    text = "poisson:rate=2,prompt=uniform(1,2000),output=50,tenants=5,requests={}"
    source = tmp_path / "t.jsonl"
    write_trace(TraceStream(text.format(20_000)), source)
    assert source.stat().st_size > 1.5 * MIB

    def convert():
        write_trace(TraceStream(source), tmp_path / f"t2.{encoding}")

    # Parquet's writer holds a row group, of more requests than there are here.
    assert peak(convert) < (12 if encoding == "parquet" else 0.5) * MIB


def test_generating_and_describing_hold_no_trace():
    text = "poisson:rate=2,prompt=uniform(1,2000),output=50,requests={}"
    assert peak(lambda: describe(TraceStream(text.format(20_000)))) < 1.5 * MIB


def test_conversations_hold_only_those_under_way():
    text = "conversations:rate=1,turns=3,pause=10,prompt=100,output=100,requests={}"

    def generate():
        for _ in TraceStream(text.format(20_000)):
            pass

    assert peak(generate) < 2 * MIB


def test_a_million_requests_in_memory_stay_far_below_a_gib():
    requests = 20_000
    text = f"poisson:rate=2,prompt=100,output=50,tenants=5,requests={requests}"
    assert peak(lambda: read_trace(text)) < 120 * requests


def test_a_damaged_giant_of_a_line_is_refused_early(tmp_path):
    path = tmp_path / "t.jsonl"
    with path.open("wb") as file:
        file.seek(2**30)  # a hole that takes no room on the disk
        file.write(b"\n")

    def read():
        with pytest.raises(Exception, match="longer than 1,048,576 bytes"):
            read_trace(path)

    assert peak(read) < 8 * MIB


def test_a_table_is_the_sequence_that_it_was_made_of():
    requests = [
        TraceRequest(0.5, 3, 4, (1, 2**63 - 1), 2, "p", 2, "t", -5, 1),
        TraceRequest(0.25, 1, 1),
        TraceRequest(0.75, 9, 9, (7,), 512, "q", 1, None, 0, 0),
    ]
    table = TraceTable(requests)
    assert list(table) == requests
    assert list(table) == list(table[0:3])
    assert table == tuple(requests)
    assert table != requests[:2]
    assert table[-1] == requests[-1]
    assert table[1:] == requests[1:]
    assert (len(table), table.total_tokens, table.in_order) == (3, 27, False)
    assert table[1:].in_order
    with pytest.raises(IndexError):
        table[3]
    assert requests[1] in table
