"""``kvhouse remedies``, and that its flags bring ``kvhouse replay`` to the same figures."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse import devices, spec
from kvhouse.cli import app
from kvhouse.cli.replaying import Replay
from kvhouse.errors import KvhouseError
from kvhouse.replayer import Setup, Tiering, read_trace
from kvhouse.replayer.remedies.flags import base_flags, extra_flags

SHORT = "azure-conv-2023 --limit 24 --cut 3000 --model llama-2-7b --kv-memory 4GiB"


def run(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    app(shlex.split(line), standalone_mode=False)
    return capsys.readouterr().out


def test_every_row_s_flags_give_its_figures_again(capsys):
    line = f"remedies {SHORT} --policy contiguous --slo-ttft 2s --scale-rate 4 --json"
    report = json.loads(run(line, capsys))
    name, command = report["command"].split(" ", 1)
    assert name == "kvhouse"
    base = json.loads(run(f"{command} --json", capsys))
    assert base["goodput"]["share"] == report["base"]["in_time_share"]
    named = {"model": "llama-2-7b", "device": "a100-80g", "partial": False, "profile": None}
    assert base == {**named, **report["base_result"]}
    enough = json.loads(run(f"{command} {report['limit']['unbounded_flags']} --json", capsys))
    assert enough["pool"]["bytes"] == report["limit"]["unbounded_bytes"]
    assert enough["running"]["peak"] == report["limit"]["unbounded"]["in_memory_peak"]
    assert any(row["pair"] for row in report["rows"])
    for row in report["rows"]:
        for flags, expected in zip(row["flags"], row["results"], strict=True):
            result = json.loads(run(f"{command} {flags} --json", capsys))
            assert result == {**named, **expected}


def test_the_table_has_every_row_its_flags_and_the_verdict(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = run(f"remedies {SHORT} --scale-rate 4", capsys)
    report = json.loads(run(f"remedies {SHORT} --scale-rate 4 --json", capsys))
    words = " ".join(text.split())
    for row in report["rows"]:
        assert f"{row['name']}: {', '.join(row['flags'])}" in words
        if not row["pair"]:
            assert f"accuracy: {row['accuracy']} assumes: {row['assumption']}" in words
    for one in report["excluded"]:
        assert f"Not tried: {one['name']}: {one['reason']}" in words
    assert words.endswith(report["verdict"])
    assert report["command"] in words
    assert all(text in words for text in (*report["limit"]["evidence"], *report["compared"]))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--try-devices 1", "compare 2 to"),
        ("--try-devices two", "write numbers such as"),
        ("--try-host-memory much", "is not a size"),
        ("--nvme-link 6", "is not a rate"),
        ("--pairs -1", "-1 pairs"),
        ("--policy sparse", "unknown policy"),
        ("--replica 2", "write for example 1/2"),
        ("--replica 3/2", "number them from 1 on"),
        ("--tp 3", "do not divide by 3 ranks"),
        ("--kv-blocks 0", "a pool has at least 1"),
        ("--watermark 1", "give a share of the pool from 0 to below 1"),
        ("--tier-write often", "unknown write 'often': choose one of through, back"),
        ("--tier-replacement fifo", "unknown replacement 'fifo': choose one of lru, arc"),
        ("--from-log log --kv-blocks 9", "both name the pool"),
    ],
)
def test_what_is_impossible_is_one_line(options, reason):
    with pytest.raises(KvhouseError, match=reason) as caught:
        app(shlex.split(f"remedies {SHORT} {options}"), standalone_mode=False)
    assert "\n" not in str(caught.value)


def test_links_are_of_the_base_s_tiers_too(capsys):
    line = f"remedies {SHORT} --host-memory 1GiB --host-link 20GB/s --nvme-link 5GB/s --json"
    report = json.loads(run(line, capsys))
    (host,) = report["base_result"]["scenario"]["tiers"]
    assert (host["bytes"], host["bytes_per_second"]) == (2**30, 20e9)
    (row,) = (row for row in report["rows"] if row["name"] == "NVMe offload")
    assert [tier["bytes_per_second"] for tier in row["results"][0]["scenario"]["tiers"]] == [
        20e9, 5e9,
    ]  # fmt: skip


def test_replay_says_what_the_bytes_of_a_rank_and_its_sums_are(capsys):
    line = "replay azure-conv-2023 --limit 4 --model llama-3.1-8b --tp 2 --device"
    counted = " ".join(run(f"{line} h100-80g", capsys).split())
    assert "on each of 2 h100-80g (tensor parallel)" in counted
    assert "Bytes are those of each of 2 ranks; sums over them counted at 450 GB/s" in counted
    left_out = " ".join(run(f"{line} epyc-9654", capsys).split())
    assert "sums over them not counted: no link between them is known" in left_out
    alone = run("replay azure-conv-2023 --limit 4 --model llama-3.1-8b --replica 2/4", capsys)
    assert "ranks" not in alone
    assert alone.startswith("1 requests of azure-conv-2023")


TRACE = read_trace("azure-conv-2023", limit=3)
BARE = Setup(TRACE, spec.load("llama-2-7b"), devices.get("a100-80g"))
SIZES = st.integers(1, 2**50)
RATES = st.integers(1, 2**50).map(float)
SHARES = st.floats(0, 1, exclude_min=True)


def _tiers(host: int, link: float, nvme: int, rate: float, latency: float) -> Tiering:
    return Tiering(host, link, nvme, rate, latency, "arc", "through")


SETUPS = st.builds(
    replace,
    st.just(BARE),
    kv_memory=st.none() | SIZES,
    kv_blocks=st.none() | st.integers(1, 10**9),
    policy=st.sampled_from(["paged", "contiguous-max", "contiguous-pow2"]),
    fit=st.sampled_from(["first", "buddy"]),
    prefix_cache=st.booleans(),
    kv_format=st.sampled_from(["bf16", "fp8", "int4"]),
    weight_dtype=st.sampled_from([None, "int8"]),
    block_size=st.integers(1, 512),
    max_length=st.none() | st.integers(1, 4096),
    token_budget=st.integers(1, 10**6),
    max_running=st.integers(1, 10**6),
    order=st.sampled_from(["fcfs", "shortest"]),
    prefill_first=st.booleans(),
    watermark=SHARES,
    utilization=SHARES,
    as_backlog=st.booleans(),
    tiering=st.just(Tiering())
    | st.builds(_tiers, SIZES, RATES, SIZES, RATES, st.floats(1e-9, 1e6)),
    tp=st.integers(1, 64),
    replica=st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))),
)


def read_back(flags: str) -> Setup:
    """The setup that ``kvhouse replay`` makes of flags."""
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replay, "drive", lambda ready, *_: seen.append(ready.setup))
        patch.setattr(Setup, "missing_bytes", 0)
        line = f"replay azure-conv-2023 --limit 3 --model llama-2-7b {flags}"
        app(shlex.split(line), standalone_mode=False)
    setup: Setup = seen[0]
    return setup


@given(SETUPS)
@settings(max_examples=150, deadline=None)
def test_the_flags_of_a_setup_are_read_back_as_that_setup(setup):
    assert read_back(base_flags(setup)) == setup


@given(SETUPS, SIZES, st.integers(1, 10**9))
@settings(max_examples=50, deadline=None)
def test_flags_behind_those_of_the_base_go_before_them(base, size, blocks):
    after = replace(
        base, policy="paged", kv_format="int8", kv_blocks=blocks, max_length=17, prefix_cache=True,
        tiering=replace(base.tiering, host_memory=size), tp=2, replica=(1, 2),
    )  # fmt: skip
    assert read_back(f"{base_flags(base)} {extra_flags(base, after)}") == after


@given(
    st.floats(0, 1e6), st.floats(1e-3, 1e6), st.floats(1e-6, 1, exclude_max=True),
    st.integers(0, 2**60), st.floats(1e-6, 1e6), st.integers(2, 10**6),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_what_was_taken_of_the_trace_is_named(start, duration, sample, seed, factor, cut):
    selection = replace(
        TRACE.selection, start=start, duration=duration, sample=sample, seed=seed,
        scale_rate=factor, scale_lengths=factor, max_length=cut,
    )  # fmt: skip
    words = shlex.split(base_flags(replace(BARE, trace=replace(TRACE, selection=selection))))
    found = dict(zip(words[::2], words[1::2], strict=True))
    expected = {
        "--start": start, "--duration": duration, "--sample": sample, "--sample-seed": seed,
        "--limit": 3, "--scale-rate": factor, "--scale-lengths": factor, "--cut": cut,
    }  # fmt: skip
    defaults = {"--start": 0, "--sample-seed": 0, "--scale-rate": 1, "--scale-lengths": 1}
    for name, value in expected.items():
        assert math.isclose(float(found.get(name, defaults.get(name, 0))), value, rel_tol=0)


UNFIT = "azure-conv-2023 --limit 16 --cut 3000 --model llama-2-13b"


def test_what_does_not_fit_is_answered_with_what_would(capsys):
    """Weights of 26.03 GB on a V100 with 16 GiB, of which 90 % are used."""
    line = f"remedies {UNFIT} --device v100-16g"
    report = json.loads(run(f"{line} --json", capsys))
    weights = 13_015_864_320 * 2
    assert report["weight_bytes"] == weights
    assert report["usable_bytes"] < weights
    rows = {row["name"]: row for row in report["rows"]}
    assert {"int4 weights", "int8 weights", "tensor parallel 2"} <= rows.keys()
    for row in rows.values():
        flags = [*shlex.split(report["command"])[1:], *shlex.split(row["flags"]), "--json"]
        result = json.loads(run(shlex.join(flags), capsys))
        assert result["running"]["peak"] == row["figures"]["in_memory_peak"]
        assert result["output_tokens_per_second"] == row["figures"]["output_tokens_per_second"]
    by_device = [row["figures"]["goodput_per_device"] for row in report["rows"]]
    assert by_device == sorted(by_device, reverse=True)
    text = " ".join(run(line, capsys).split())
    assert text.endswith(report["verdict"])
    assert all(f"{name}: {row['flags']}" in text for name, row in rows.items())
    assert all(row["assumption"] for row in rows.values())
    best = report["rows"][0]
    assert f"Of what makes it fit, {best['name']} serves most" in report["verdict"]


def test_what_nothing_makes_fit_is_said(capsys):
    line = "remedies azure-conv-2023 --limit 16 --cut 3000 --model llama-3.1-405b --device v100-16g"
    report = json.loads(run(f"{line} --json", capsys))
    assert report["rows"] == []
    assert report["verdict"].startswith("Nothing that was tried makes it fit")
    assert {"int4 weights", "tensor parallel 8"} <= {one["name"] for one in report["excluded"]}
