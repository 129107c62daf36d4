"""A sweep: every cell is a replay, whoever computes it, and nothing that was done is lost."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse import devices, spec
from kvhouse.errors import KvhouseError
from kvhouse.replayer import SLO, Setup, Stop, Tiering, Trace, TraceRequest, read_trace, replay
from kvhouse.replayer.sweep import Grid, Rate, Row, run_sweep, sweep_of
from kvhouse.replayer.sweep.backend import Ended, computed
from kvhouse.replayer.sweep.cluster import Cluster
from kvhouse.replayer.sweep.ranking import SORTS, ranked, sorting

TRACE = read_trace("azure-conv-2023", limit=30, max_length=2048)
SLO_1S = SLO(first_token=1.0)
GRID = Grid(
    models=("llama-3-8b", "llama-2-70b"),
    devices=("a100-80g", "l4"),
    policies=("paged", "contiguous"),
    kv_formats=("bf16", "int4"),
    block_sizes=(16, 64),
    rates=(Rate(), Rate(5.0, relative=False)),
)


def sweep(grid=GRID, *, slo=SLO_1S, trace=TRACE, kind=sweep_of, **given):
    models = {name: spec.load(name) for name in grid.models}
    figures = {name: devices.get(name) for name in grid.devices}
    base = Setup(trace, models[grid.models[0]], figures[grid.devices[0]], **given)
    return kind(grid, base, models, figures, slo)


@pytest.fixture(scope="module")
def serial():
    """Every cell of the grid, one after the other in this process."""
    whole = sweep()
    return [whole.row(cell) for cell in whole.grid.cells()]


def test_the_cells_are_the_product_in_its_order():
    cells = GRID.cells()
    assert len(cells) == len(GRID) == 64
    assert [cell.index for cell in cells] == list(range(64))
    product = itertools.product(
        GRID.models, GRID.devices, ("paged", "contiguous-max"), GRID.kv_formats, (16, 64),
        GRID.rates,
    )  # fmt: skip
    assert [tuple(asdict(cell).values())[1:6] for cell in cells] == [names[:5] for names in product]


def test_a_row_is_what_a_replay_of_its_own_gives(serial):
    own_rate = 29 / TRACE.requests[29].arrival
    done = [row for row in serial if row.status == "done"]
    assert len(done) > 20
    for row in done[::3]:
        factor = 1 if row.rate != 5 else 5 / own_rate
        requests = [one._replace(arrival=one.arrival / factor) for one in TRACE.requests]
        result = replay(
            Trace("scaled", requests), row.model, row.device, policy=row.policy,
            kv_format=row.kv_format, block_size=row.block_size, slo=SLO_1S,
        )  # fmt: skip
        assert row.finished == result.finished
        assert row.rejected == len(result.rejections)
        assert row.output_tokens_per_second == result.output_tokens_per_second
        assert row.latency_seconds_p99 == result.latency_seconds.p99
        assert row.goodput_share == result.goodput.share
        assert row.pool_blocks == result.pool.blocks
        assert row.used_share == result.ledger.mean_share["used"]
        shares = ("used", "reserved", "internal", "external", "free")
        assert sum(getattr(row, f"{name}_share") for name in shares) == pytest.approx(1)
    assert sorted({row.rate for row in serial}) == [pytest.approx(own_rate), 5.0]


def test_what_cannot_fit_is_a_row_with_the_reason(serial):
    big = [row for row in serial if row.model == "llama-2-70b"]
    assert {row.status for row in big} == {"impossible"}
    assert all("leave none for keys and values" in row.reason for row in big)
    assert all(row.finished is None for row in big)
    assert len({row.key for row in serial}) == 64


def test_processes_give_what_one_process_gives(serial):
    seen = []
    result = run_sweep(sweep(), workers=2, on_row=seen.append, on_begin=seen.append)
    assert list(result.rows) == serial
    assert (result.cells, result.reused, result.partial) == (64, 0, False)
    assert seen[0] == 64
    assert sorted(row.key for row in seen[1:]) == sorted(row.key for row in serial)


def test_a_results_file_goes_on_where_it_was(tmp_path, serial):
    out = tmp_path / "results.parquet"
    stop = Stop()

    def enough(row):
        stop.asked = row.key == serial[9].key or stop.asked

    partial = run_sweep(sweep(), workers=1, out=out, on_row=enough, stop=stop)
    assert partial.partial
    assert list(partial.rows) == serial[:10]
    assert list(tmp_path.iterdir()) == [out]
    seen = []
    whole = run_sweep(sweep(), workers=2, out=out, on_row=seen.append)
    assert list(whole.rows) == serial
    assert (whole.reused, len(seen)) == (10, 54)
    again = run_sweep(sweep(), workers=2, out=out, on_row=seen.append)
    assert list(again.rows) == serial
    assert (again.reused, len(seen)) == (64, 54)


def test_the_results_file_is_parquet_that_anyone_reads(tmp_path, serial):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "results.parquet"
    run_sweep(sweep(), workers=2, out=out)
    table = parquet.read_table(out)
    assert table.to_pylist() == [row.to_dict() for row in serial]
    types = {str(field.type) for field in table.schema}
    assert types == {"int64", "double", "string"}
    facts = json.loads(table.schema.metadata[b"kvhouse.sweep"])
    assert facts["max_running"] == "256"


def test_more_cells_of_the_same_sweep_join_the_file(tmp_path, serial):
    out = tmp_path / "results.parquet"
    few = replace(GRID, models=("llama-3-8b",), kv_formats=("int4",))
    assert run_sweep(sweep(few), workers=1, out=out).reused == 0
    result = run_sweep(sweep(), workers=2, out=out)
    assert result.reused == len(few) == 16
    assert list(result.rows) == serial
    assert run_sweep(sweep(few), workers=1, out=out).reused == 16
    assert run_sweep(sweep(), workers=2, out=out).reused == 64


OTHERS = {
    "trace": {"trace": read_trace("azure-conv-2023", limit=29, max_length=2048)},
    "max_running": {"max_running": 7},
    "slo": {"slo": SLO(first_token=2.0)},
    "tiering": {"tiering": Tiering(2**30)},
    "watermark, kv_blocks": {"watermark": 0.1, "kv_blocks": 900},
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_of_another_sweep_is_refused_by_what_differs(tmp_path, what):
    out = tmp_path / "results.parquet"
    small = replace(GRID, models=("llama-3-8b",), devices=("l4",), block_sizes=(16,))
    run_sweep(sweep(small), workers=1, out=out)
    before = out.read_bytes()
    other = sweep(small, **OTHERS[what])
    with pytest.raises(KvhouseError) as refused:
        run_sweep(other, workers=1, out=out)
    named = str(refused.value).partition("with another ")[2].partition(":")[0]
    assert set(named.split(", ")) == set(what.split(", "))
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_a_model_that_changed_under_its_name_is_refused(tmp_path):
    out = tmp_path / "results.parquet"
    small = replace(GRID, models=("llama-3-8b",), devices=("l4",), block_sizes=(16,))
    run_sweep(sweep(small), workers=1, out=out)
    changed = sweep(small)
    other = {"llama-3-8b": spec.load("llama-2-7b")}
    changed = sweep_of(small, changed.base, other, changed.devices, SLO_1S)
    with pytest.raises(KvhouseError, match="with another model llama-3-8b: name another file"):
        run_sweep(changed, workers=1, out=out)


# Workers that die


@pytest.fixture(params=[1, 9], ids="{} deaths".format)
def poison(tmp_path, monkeypatch, request):
    """How many processes each cell of one block size kills, and the class of such sweeps."""
    deaths = request.param
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "poisoned_sweep.py").write_text(
        textwrap.dedent(
            f"""
            import os, signal
            from pathlib import Path
            from kvhouse.replayer.sweep.work import Sweep

            DEATHS = {deaths}

            class Poisoned(Sweep):
                def row(self, cell):
                    deaths = len(list(Path({str(folder)!r}).glob(f"{{cell.index}}.*")))
                    if cell.block_size == 64 and deaths < DEATHS:
                        Path({str(folder)!r}, f"{{cell.index}}.{{deaths}}").touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                    return super().row(cell)
            """
        )
    )
    monkeypatch.syspath_prepend(folder)
    import poisoned_sweep

    def poisoned(*arguments):
        made = sweep_of(*arguments)
        return poisoned_sweep.Poisoned(*(getattr(made, name) for name in made.__slots__))

    yield deaths, poisoned
    del sys.modules["poisoned_sweep"]


SMALL = replace(GRID, models=("llama-3-8b",), devices=("a100-80g",), policies=("paged",))


def test_a_killed_worker_costs_nothing_and_a_cell_that_kills_them_all_is_a_row(tmp_path, poison):
    deaths, kind = poison
    out = tmp_path / "results.parquet"
    plain = sweep(SMALL)
    expected = [plain.row(cell) for cell in SMALL.cells()]
    result = run_sweep(sweep(SMALL, kind=kind), workers=2, out=out)
    for row, wanted in zip(result.rows, expected, strict=True):
        if deaths == 9 and row.block_size == 64:
            assert row.status == "failed"
            assert row.reason.startswith("its worker died 3 times: killed by signal 9")
            assert row.finished is None
        else:
            assert row == wanted
    # What failed is tried again.
    whole = run_sweep(plain, workers=2, out=out)
    assert list(whole.rows) == expected
    assert whole.reused == (4 if deaths == 9 else 8)


class Scripted:
    """A backend that ends cells as it is told, all that are under way at once."""

    free = 2

    def __init__(self, deaths):
        self.deaths, self.cells, self.begun = deaths, [], []

    @property
    def busy(self):
        return len(self.cells)

    def begin(self, cell):
        self.cells.append(cell)
        self.begun.append(cell.index)
        self.free -= 1

    def wait(self, seconds):
        del seconds
        ended, self.cells, self.free = self.cells, [], 2
        return [self._end(cell) for cell in ended]

    def _end(self, cell):
        self.deaths[cell.index] = self.deaths.get(cell.index, 0) - 1
        row = None if self.deaths[cell.index] >= 0 else cell.index
        return Ended(cell, row, "out of memory")

    def close(self):
        raise AssertionError("whoever opened it closes it")


@given(st.dictionaries(st.integers(0, 7), st.integers(0, 5)))
def test_each_cell_ends_once_whatever_dies(deaths):
    made = sweep(SMALL)
    backend = Scripted(dict(deaths))
    rows = list(computed(made, SMALL.cells(), backend))
    failed = {made.key(cell) for cell in SMALL.cells() if deaths.get(cell.index, 0) >= 3}
    assert {row.key for row in rows if isinstance(row, Row)} == failed
    assert {row for row in rows if not isinstance(row, Row)} == {
        index for index in range(8) if deaths.get(index, 0) < 3
    }
    assert len(rows) == 8
    for index in range(8):
        assert backend.begun.count(index) == min(3, deaths.get(index, 0) + 1)


def test_a_bug_in_one_cell_is_its_row_alone(monkeypatch):
    def broken(self, **_):
        if self.block_size == 64:
            raise RuntimeError("tokens were\nlost")
        return drive(self, **_)

    drive = Setup.drive
    monkeypatch.setattr(Setup, "drive", broken)
    made = sweep(SMALL)
    rows = [made.row(cell) for cell in SMALL.cells()]
    assert {row.status for row in rows if row.block_size == 64} == {"failed"}
    assert {row.reason for row in rows if row.block_size == 64} == {
        "RuntimeError: tokens were lost"
    }
    assert {row.status for row in rows if row.block_size == 16} == {"done"}


# Input


@pytest.mark.parametrize(
    ("text", "rate"),
    [("2", Rate(2.0, relative=False)), ("1.5x", Rate(1.5)), (" 1x", Rate()),
     ("1e-3", Rate(0.001, relative=False))],
)  # fmt: skip
def test_rates(text, rate):
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["", "x", "fast", "2y", "2xx", "0", "-1", "inf", "nan", "0x"])
def test_rates_that_are_none(text):
    with pytest.raises(KvhouseError, match="rate"):
        Rate.parse(text)


def test_rates_of_a_trace():
    assert Rate(4.0, relative=False).on(8.0) == (4.0, 0.5)
    assert Rate(4.0).on(8.0) == (32.0, 4.0)
    assert Rate().on(None) == (None, 1.0)
    with pytest.raises(KvhouseError, match="there is no rate to change"):
        Rate(2.0).on(None)


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"models": ()}, "models: give different ones, at least one"),
        ({"policies": ("contiguous", "contiguous-max")}, "policies: give different ones"),
        ({"policies": ("pages",)}, "unknown policy 'pages'"),
        ({"kv_formats": ("int3",)}, "unknown KV format 'int3'"),
        ({"block_sizes": (16, 0)}, "block size 0: must be at least 1"),
        ({"rates": (Rate(1.0), Rate(1.0))}, "rates: give different ones"),
        ({"block_sizes": tuple(range(1, 10_000))}, "a grid of 319,968 cells: give at most 100,000"),
    ],
)
def test_grids_that_are_none(axes, reason):
    with pytest.raises(KvhouseError, match=reason):
        replace(GRID, **axes)


def test_options_that_go_with_no_policy():
    grid = replace(GRID, policies=("contiguous",))
    with pytest.raises(KvhouseError, match="a tier goes with paged, which is not among"):
        sweep(grid, tiering=Tiering(2**30))
    with pytest.raises(KvhouseError, match="there is no rate to change"):
        sweep(as_backlog=True)
    assert sweep(replace(GRID, rates=(Rate(),)), as_backlog=True).own_rate is None


def test_a_prefix_cache_is_for_the_paged_cells():
    trace = read_trace("mooncake-conv", limit=20)
    grid = replace(SMALL, models=("llama-3.1-8b",), policies=("paged", "contiguous-oracle"))
    made = sweep(grid, trace=trace, prefix_cache=True)
    rows = [made.row(cell) for cell in grid.cells()]
    assert {row.status for row in rows} == {"done"}
    assert {row.policy for row in rows if row.prefix_token_share is not None} == {"paged"}


@pytest.mark.parametrize(
    "name",
    [
        *("results.csv", ".", "nowhere/results.parquet", ".parquet", "results.parquet/"),
        f"{'n' * 300}.parquet",
    ],
)
def test_files_that_cannot_be_used(tmp_path, name):
    with pytest.raises(KvhouseError, match=r"ends in \.parquet|cannot be (written|used)"):
        run_sweep(sweep(SMALL), workers=1, out=f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_ends_before_its_first_cell_leaves_no_file(tmp_path):
    stop = Stop(asked=True)
    result = run_sweep(sweep(SMALL), workers=1, out=tmp_path / "results.parquet", stop=stop)
    assert (result.rows, result.partial, stop.cut_short) == ((), True, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["", ":", "x", "host:port", "ray://", "a b:1", "auto\n"])
def test_addresses_of_no_cluster(address):
    with pytest.raises(KvhouseError, match=r"Ray cluster .*: write auto, host:port or ray://"):
        Cluster(sweep(SMALL), address)


def test_a_cluster_that_does_not_start(monkeypatch):
    def fail(**_):
        raise Exception("the node\ntimed out")

    ray = SimpleNamespace(is_initialized=lambda: False, init=fail)
    monkeypatch.setattr("kvhouse.replayer.sweep.cluster._ray", lambda: ray)
    with pytest.raises(KvhouseError, match="no Ray cluster at local: the node timed out: start"):
        Cluster(sweep(SMALL), "local")


def test_no_workers():
    with pytest.raises(KvhouseError, match="0 workers: give at least 1"):
        run_sweep(sweep(SMALL), workers=0)


# Order


def test_the_best_come_first(serial):
    for name, (figure, more) in SORTS.items():
        rows = ranked(serial, name)
        values = [getattr(row, figure) for row in rows]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=more)
        assert values[len(known) :] == [None] * (64 - len(known))
        assert sorted(row.key for row in rows) == sorted(row.key for row in serial)


def test_what_rows_are_ordered_by():
    assert sorting(None, with_slo=True) == "goodput"
    assert sorting(None, with_slo=False) == "tokens"
    assert sorting("ttft", with_slo=False) == "ttft"
    for name in ("goodput", "luck"):
        with pytest.raises(KvhouseError, match=name):
            sorting(name, with_slo=False)


def test_the_columns_of_a_row():
    columns = Row.columns()
    assert list(columns) == list(asdict(sweep(SMALL).failed(SMALL.cells()[0], "")))
    assert {columns[name] for name in ("key", "status", "reason")} == {str}
    assert (columns["steps"], columns["rate"]) == (int, float)


def test_equal_traffic_has_one_digest_whatever_holds_it():
    table = TRACE.requests
    plain = sweep(trace=Trace("plain", list(table)))
    assert plain.facts == sweep().facts
    other = [*table[:29], table[29]._replace(tenant="b")]
    assert sweep(trace=Trace("tenant", other)).facts["trace"] != plain.facts["trace"]
    ids = [TraceRequest(0.0, 9, 9, hash_ids=ids, hash_block=4) for ids in ((1, 2), (2, 1))]
    digests = {sweep(slo=None, trace=Trace("", [TraceRequest(1.0, 1, 1), one])).facts["trace"]
               for one in ids}  # fmt: skip
    assert len(digests) == 2
