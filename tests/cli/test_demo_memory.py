"""The demos without weights: growth, warehouse, oom, and the list of all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kvhouse import devices
from kvhouse.core.memory import make_memory
from kvhouse.core.request import Request
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.planner.growth import growth
from kvhouse.replayer import Setup, read_trace
from kvhouse.replayer.moments.oom import out_of_memory, runs_of
from kvhouse.replayer.moments.oom_outcome import OomSetting
from kvhouse.replayer.moments.warehouse import POLICIES, Warehouse, warehouse
from kvhouse.spec import load
from kvhouse.views.growth import bar
from kvhouse.views.warehouse import show_warehouse

KVHOUSE = Path(sys.executable).with_name("kvhouse")
#: Keys and values of one token of Llama-2-7B in fp16: 2 x 32 layers x 4,096 x 2 B.
TOKEN = 524_288
GIB = 2**30


def kvhouse(*arguments, cwd=None):
    return subprocess.run(
        [KVHOUSE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"COLUMNS": "80"},
    )


# Growth


def test_growth_is_what_the_allocator_holds_token_by_token():
    model = load("smollm2")
    layout = KVLayout.of(model, "bf16")
    memory = make_memory("paged", layout, layout.blocks_for(600), 600, in_flight=1)
    request = Request(0, 1, 600)
    assert memory.admit(request, alone=True) is None
    held = {}
    for tokens in range(1, 601):
        assert memory.grow(request, tokens)
        request.computed = tokens
        held[tokens] = len(memory.holding(0).blocks()) * layout.block_bytes
    points = growth(model, "bf16", 600).points
    assert [point.tokens for point in points][:5] == [1, 2, 16, 17, 75]
    assert points[-1].tokens == 600
    for point in points:
        # 30 layers x 2 x 3 heads x 64 x 2 B.
        assert point.needed_bytes == point.tokens * 23_040
        assert point.held_bytes == held[point.tokens]


def test_when_kv_passes_the_weights():
    seven_b = growth(load("llama-2-7b"))
    assert seven_b.weight_bytes == 6_738_415_616 * 2
    assert seven_b.crossover_batch == 7
    assert seven_b.crossover_length is None
    full = 4096 * TOKEN
    assert [batch.requests for batch in seven_b.batches] == [1, 2, 4, 7, 8, 16, 32]
    assert all(batch.kv_bytes == batch.requests * full for batch in seven_b.batches)
    assert seven_b.batches[-1].kv_bytes == 64 * GIB
    # One request of a model with a long context: the first length that is heavier.
    long = growth(replace(load("llama-2-7b"), max_length=100_000))
    assert long.crossover_length == seven_b.weight_bytes // TOKEN + 1 == 25_706


def test_layers_with_a_window_stop_growing():
    """Gemma-3-27B: 52 layers of 62 see 1,024 tokens; 16 KV heads of 128 in fp16."""
    sizes = {p.tokens: p.needed_bytes for p in growth(load("gemma-3-27b"), tokens=4096).points}
    vector = 2 * 16 * 128 * 2
    assert sizes[1024] - sizes[512] == 512 * 62 * vector
    assert sizes[4096] - sizes[2048] == 2048 * 10 * vector


def test_a_length_beyond_the_model_s_is_refused_in_one_line():
    done = kvhouse("demo", "growth", "--tokens", "5000")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "kvhouse: max_length 5,000: llama-2-7b takes 1 to 4,096 tokens\n"


@pytest.mark.parametrize(("share", "drawn"), [(0, ""), (1, "█" * 40), (1.5 / 40, "█▌")])
def test_a_bar_has_its_share_of_forty_columns(share, drawn):
    assert bar(share) == drawn


# Warehouse


@pytest.fixture(scope="module")
def outcome():
    return warehouse(Warehouse())


def test_twelve_reservations_fill_24_gib_and_21_are_idle(outcome):
    shelves = outcome.shelves["contiguous-max"]
    assert shelves.running == 24 * GIB // (2 * GIB) == 12
    assert (shelves.refusal.needed, shelves.refusal.free) == (256, 0)
    assert shelves.refusal.request == 12
    ledger = shelves.ledger
    assert ledger.used == round(shelves.mean_tokens * 12) * TOKEN
    assert round(ledger.used / GIB) == 3
    assert round((ledger.total - ledger.used) / GIB) == 21
    # What each may still generate, but for the last token, whose state is never kept.
    assert ledger.reserved == 12 * 549 * TOKEN - ledger.used
    assert ledger.internal == 12 * (4096 - 549) * TOKEN


def test_the_shelves_are_drawn_as_the_blocks_lie(outcome):
    """A shelf is a reservation of 32 cells, of 8 blocks of 16 tokens."""
    shelves = outcome.shelves["contiguous-max"]
    for cell, (owner, kind) in enumerate(zip(shelves.owners, shelves.kinds, strict=True)):
        assert owner == cell // 32 + 1
        assert kind == ("used" if cell % 32 < 4 else "reserved" if cell % 32 == 4 else "internal")


def test_pages_let_in_as_many_as_their_tokens_allow(outcome):
    shelves = outcome.shelves["paged"]
    assert shelves.running * shelves.mean_tokens * TOKEN == pytest.approx(shelves.ledger.used)
    assert 90 < shelves.running <= outcome.blocks // 31
    assert shelves.ledger.internal == 0
    held = Counter(owner for owner in shelves.owners if owner)
    assert len(held) == shelves.running
    assert sum(held.values()) == len(shelves.owners) - shelves.owners.count(0)
    assert min(held.values()) >= 3  # of 31 to 32 blocks, one in 8 is looked at


def test_the_backlog_goes_as_its_replay_does(outcome):
    for policy in POLICIES:
        result = Warehouse().setup(policy).drive()
        shelves = outcome.shelves[policy]
        assert shelves.steps == result.steps
        assert shelves.peak == result.running.peak
        assert shelves.preemptions == result.preemptions


def test_a_backlog_that_never_fills_the_pool_is_an_error():
    with pytest.raises(KvhouseError, match="20 requests never fill the pool"):
        warehouse(Warehouse(requests=20))


def test_no_line_of_the_picture_is_wider_than_a_terminal(outcome):
    console = Console(width=80, file=None)
    with console.capture() as captured:
        show_warehouse(console, outcome)
    drawn = [line for line in captured.get().splitlines() if "GiB │" in line]
    assert len(drawn) == 12
    assert all(len(line) <= 80 for line in drawn)
    assert drawn[0].startswith("  0 GiB │AAAA░")
    assert drawn[11].count("·") == outcome.shelves["paged"].owners.count(0) > 0


def test_the_page_is_written_beside_the_picture(tmp_path):
    done = kvhouse("demo", "warehouse", "--html", "page.html", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shelves"]["contiguous-max"]["running"] == 12
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "llama-2-7b" in page


# Out of memory


@pytest.fixture(scope="module")
def refused():
    return out_of_memory(OomSetting())


def test_enough_is_free_and_no_run_is_long_enough(refused):
    refusal, runs, ledger = refused.refusal, refused.free_runs, refused.ledger
    assert refusal.fragmented
    assert sum(runs) == refusal.free >= refusal.needed > max(runs)
    assert ledger.external == refusal.free * refused.block_bytes == 11 * GIB
    names = ("used", "shared", "reserved", "internal", "external", "cached", "free")
    assert sum(getattr(ledger, name) for name in names) == ledger.total == 24 * GIB


def test_the_causes_are_ranked_by_what_they_keep(refused):
    sizes = {cause.name: cause.size for cause in refused.causes}
    ledger = refused.ledger
    assert sizes == {
        "fragmentation": ledger.external,
        "reservation": ledger.reserved + ledger.internal,
        "no sharing": (refused.copies - 1) * 512 * TOKEN,
    }
    assert [*sizes.values()] == sorted(sizes.values(), reverse=True)
    assert refused.copies == refused.running == 16


def test_the_traffic_goes_as_its_replay_does(refused):
    setting = OomSetting()
    trace = replace(read_trace(setting.traffic), requests=tuple(setting.requests()))
    setup = Setup(
        trace,
        load(setting.model),
        devices.get("a100-80g"),
        setting.kv_memory,
        policy=setting.policy,
        kv_format=setting.kv_format,
        max_length=setting.max_length,
        as_backlog=True,
    )
    result = setup.drive()
    assert result.steps == refused.steps
    assert result.refusals.fragmented == refused.refused_requests
    assert refused.refused_requests < refused.refused_steps < refused.steps


def test_the_same_requests_in_pages(refused):
    paged, shared = refused.otherwise
    assert paged.admitted
    assert shared.admitted
    # Pages hold what is used and a tail of less than a block each.
    tails = paged.held_bytes - refused.ledger.used
    assert 0 <= tails < refused.running * refused.block_bytes
    # Sharing keeps 32 blocks once and not 16 times.
    assert paged.held_bytes - shared.held_bytes == 15 * 32 * refused.block_bytes
    assert shared.more > paged.more > 0


def test_the_doctor_reads_the_same_figures(refused):
    assert "Tried to allocate 1.82 GiB" in refused.advice.line
    assert "11.00 GiB is reserved by PyTorch but unallocated" in refused.advice.line
    assert "in pieces" in refused.advice.title
    assert any("expandable_segments" in flag for flag in refused.advice.flags)


def test_traffic_without_such_a_refusal_is_an_error():
    with pytest.raises(KvhouseError, match="no request was refused while enough was free"):
        out_of_memory(OomSetting(traffic="backlog:prompt=100,output=16,requests=50"))


@pytest.mark.parametrize(("ids", "runs"), [([], ()), ([5], (1,)), ([1, 2, 4, 7, 8, 9], (3, 2, 1))])
def test_runs_of_consecutive_numbers(ids, runs):
    assert runs_of(ids) == runs


# The list


def test_the_list_names_every_demo_in_a_line_each():
    listed = json.loads(kvhouse("demo", "--json").stdout)["demos"]
    names = [demo["name"] for demo in listed]
    assert {"growth", "cache", "paging", "warehouse", "oom"} <= set(names)
    shown = kvhouse("demo").stdout.splitlines()
    for demo, line in zip(listed, shown, strict=False):
        assert line.split() == [demo["name"], *demo["shows"].split()]
    assert all(len(line) <= 80 for line in shown)


def test_an_unknown_demo_is_refused():
    done = kvhouse("demo", "nosuch")
    assert done.returncode == 2
    assert "nosuch" in done.stderr


def test_json_before_the_name_is_no_silent_text():
    done = kvhouse("demo", "--json", "growth")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kvhouse: --json goes behind the demo's name")
