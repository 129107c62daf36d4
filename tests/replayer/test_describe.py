"""The description of a trace, against numpy and against counting by hand."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.replayer.describe import Lengths, describe
from kvhouse.replayer.trace_select import Selection
from kvhouse.replayer.trace_text import open_trace
from kvhouse.replayer.trace_write import write_trace
from kvhouse.replayer.traces import TraceRequest, TraceStream


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_percentiles_are_numpy_s(values):
    lengths = Lengths.of(Counter(values))
    assert (lengths.total, lengths.max) == (sum(values), max(values))
    expected = [np.mean(values), *np.percentile(values, (50, 90, 99), method="linear")]
    found = [lengths.mean, lengths.p50, lengths.p90, lengths.p99]
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_azure_slice():
    figures = describe(TraceStream("azure-conv-2023"))
    requests = list(TraceStream("azure-conv-2023"))
    gaps = np.diff([r.arrival for r in requests])
    assert (figures.requests, figures.format) == (512, "azure-csv")
    # data/traces/README.md: the first 130.5 seconds
    assert figures.duration_seconds == pytest.approx(130.5, abs=0.05)
    assert figures.requests_per_second == pytest.approx(1 / gaps.mean())
    assert figures.gap_cv == pytest.approx(gaps.std() / gaps.mean())
    assert figures.request_tokens.total == sum(r.prompt_tokens + r.output_tokens for r in requests)
    assert figures.blocks.repeated_share is None


def test_repeated_blocks_of_the_mooncake_slice_counted_by_hand():
    with open_trace("mooncake-conv") as (stream, _):
        entries = [json.loads(line) for line in stream]
    seen: list[int] = []
    repeated = 0
    for entry in entries:
        repeated += len([identity for identity in entry["hash_ids"] if identity in seen])
        seen += entry["hash_ids"]
    blocks = describe(TraceStream("mooncake-conv")).blocks
    assert (blocks.hash_block, blocks.prompt_blocks) == (512, len(seen))
    assert (blocks.distinct, blocks.repeated) == (len(set(seen)), repeated)
    assert blocks.repeated_share == repeated / len(seen) > 0


def test_what_one_tenant_said_is_not_known_to_another(tmp_path):
    write_trace(
        [
            TraceRequest(0.0, 20, 20, (1, 2, 3), 10, tenant="a"),  # the third id is the output's
            TraceRequest(0.0, 30, 1, (1, 2, 3), 10, tenant="b"),
            TraceRequest(0.0, 30, 1, (1, 2, 3), 10, tenant="a"),
            TraceRequest(1.0, 9, 1, prefix_id="p", prefix_tokens=5, tenant="a", priority=3),
            TraceRequest(1.0, 9, 1, prefix_id="p", prefix_tokens=8, tenant="a", cached_tokens=2),
            TraceRequest(2.0, 9, 1, prefix_id="p", prefix_tokens=9, tenant="a", cached_tokens=2),
            TraceRequest(2.0, 9, 1, prefix_id="p", prefix_tokens=9, tenant="b"),
        ],
        tmp_path / "t.jsonl",
    )
    figures = describe(TraceStream(tmp_path / "t.jsonl"))
    assert (figures.blocks.prompt_blocks, figures.blocks.repeated) == (8, 3)
    assert figures.blocks.distinct == 3
    assert (figures.tenants, figures.priorities, figures.prefixes) == (2, 2, 1)
    assert figures.repeated_prefix_tokens == 5 + 8
    assert figures.cached_tokens == 4


def test_what_has_no_rate():
    for text in (
        "backlog:prompt=3,output=2,requests=9",
        "constant:rate=1,prompt=3,output=2,requests=1",
    ):
        figures = describe(TraceStream(text, Selection(max_length=4)))
        assert (figures.requests_per_second, figures.gap_cv, figures.duration_seconds) == (
            None,
            None,
            0,
        )
        assert figures.cut == figures.requests


def test_burstiness_is_what_was_asked_for():
    def cv(text):
        return describe(TraceStream(f"{text},prompt=1,output=1,requests=20000")).gap_cv

    assert cv("constant:rate=8") == pytest.approx(0, abs=1e-4)
    assert cv("poisson:rate=8") == pytest.approx(1, rel=0.03)
    assert cv("gamma:rate=8,cv=3") == pytest.approx(3, rel=0.07)


def test_moments_nearer_than_a_nanosecond_have_no_rate(tmp_path):
    path = tmp_path / "tiny.jsonl"
    write_trace((TraceRequest(i * 1e-320, 10, 5) for i in range(3)), str(path))
    figures = describe(TraceStream(str(path)))
    assert figures.requests == 3
    assert (figures.requests_per_second, figures.gap_cv) == (None, None)
    json.dumps(figures.to_dict(), allow_nan=False)


def test_a_limit_may_be_beyond_any_trace():
    figures = describe(TraceStream("azure-conv-2023", Selection(limit=10**20)))
    assert figures.requests == 512
