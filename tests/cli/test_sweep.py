"""``kvhouse sweep`` as a user runs it: killed, interrupted, and gone on with."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kvhouse.cli import app
from kvhouse.cli.replay import replay_command
from kvhouse.cli.sweep import sweep_command, with_address
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.sweep import Row, SweepResult
from kvhouse.replayer.sweep.cluster import unreached
from kvhouse.views.sweep import show_sweep

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
ENVIRONMENT = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
#: Cells that take most of a second each: windows together with a prefix cache are stepped.
CELLS = [
    *("poisson:rate=20,prompt=uniform(1,300),output=uniform(1,300),requests=200",),
    *("--models", "gemma-3-27b", "--devices", "h100-80g", "--block-sizes", "8,16,32,64"),
    *("--kv-formats", "bf16,fp8", "--kv-blocks", "3000", "--prefix-cache"),
    *("--workers", "2", "--json"),
]
QUICK = ["azure-conv-2023", "--limit", "20", "--models", "llama-3-8b", "--devices", "l4,a100-80g"]


@contextmanager
def command(folder, *arguments):
    """A sweep under way, which does not outlive the block."""
    with subprocess.Popen(
        [KVHOUSE, "sweep", *arguments],
        env=ENVIRONMENT,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def outcome(folder, *arguments):
    with command(folder, *arguments) as process:
        output, errors = process.communicate(timeout=100)
    return process.returncode, output, errors


def wait_for(condition):
    end = time.monotonic() + 60
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


def lines_of(journal):
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The rows of a sweep that nobody disturbed."""
    code, output, errors = outcome(tmp_path_factory.mktemp("whole"), *CELLS)
    assert code == 0, errors
    data = json.loads(output)
    assert (data["cells"], data["reused"], data["partial"]) == (8, 0, False)
    assert {row["status"] for row in data["rows"]} == {"done"}
    return data["rows"]


def test_a_killed_worker_loses_nothing(tmp_path, whole, grandchildren):
    with command(tmp_path, *CELLS) as process:
        victim, *_ = wait_for(lambda: grandchildren(process.pid))
        os.kill(victim, signal.SIGKILL)
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert json.loads(output)["rows"] == whole


def test_a_killed_sweep_goes_on_where_it_was(tmp_path, whole, grandchildren):
    out = tmp_path / "results.parquet"
    journal = tmp_path / "results.parquet.journal"
    arguments = [*CELLS, "--out", str(out)]
    with command(tmp_path, *arguments) as process:
        wait_for(lambda: lines_of(journal) >= 3)
        theirs = grandchildren(process.pid)
        assert theirs
        process.kill()
    assert not out.exists()
    # Its workers do not go on for nobody.
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in theirs))
    code, output, errors = outcome(tmp_path, *arguments)
    assert code == 0, errors
    data = json.loads(output)
    assert data["rows"] == whole
    assert 2 <= data["reused"] < 8
    assert list(tmp_path.iterdir()) == [out]


def test_ctrl_c_keeps_what_is_done(tmp_path, whole, children, grandchildren):
    out = tmp_path / "results.parquet"
    arguments = [*CELLS, "--out", str(out)]
    with command(tmp_path, *arguments) as process:
        wait_for(lambda: lines_of(tmp_path / "results.parquet.journal") >= 2)
        theirs = grandchildren(process.pid)
        for pid in (process.pid, *children(process.pid), *theirs):  # as a terminal does
            os.kill(pid, signal.SIGINT)
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    data = json.loads(output)
    assert data["partial"]
    assert 1 <= len(data["rows"]) < 8
    assert all(row in whole for row in data["rows"])
    first, last = errors.splitlines()
    assert first == f"kvhouse: warning: partial: {len(data['rows'])} of 8 cells are done"
    assert last == "kvhouse: interrupted"
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in theirs))
    code, output, errors = outcome(tmp_path, *arguments)
    assert code == 0, errors
    assert json.loads(output)["rows"] == whole
    assert json.loads(output)["reused"] == len(data["rows"])


def test_the_table_has_the_best_first(tmp_path):
    arguments = [*QUICK, "--kv-formats", "bf16,fp8", "--slo-ttft", "1s", "--rates", "1x,2"]
    code, text, errors = outcome(tmp_path, *arguments, "--top", "3")
    assert code == 0, errors
    assert "3 of 8 replayed cells are shown." in text
    assert "All with model llama-3-8b, policy paged, block 16." in " ".join(text.split())
    code, output, _ = outcome(tmp_path, *arguments, "--json")
    data = json.loads(output)
    assert (data["sort"], data["requests"], len(data["rows"])) == ("goodput", 20, 8)
    goodput = [row["goodput_requests_per_second"] for row in data["rows"]]
    assert goodput == sorted(goodput, reverse=True)
    shown = [line.split()[0] for line in text.splitlines() if line.startswith((" l4", " a100"))]
    assert shown == [row["device"] for row in data["rows"][:3]]
    code, output, _ = outcome(tmp_path, *arguments, "--json", "--sort", "ttft")
    ttft = [row["first_token_seconds_p99"] for row in json.loads(output)["rows"]]
    assert ttft == sorted(ttft)


def test_a_narrow_table_keeps_its_figures_whole(capsys):
    """What rows are sorted by comes first, and what has no room is left out."""
    axes = ("a-model-of-some-length", "device"), ("gpu-80g",), ("paged", "contiguous-max")
    rows = [
        Row("", model, device, policy, kv, 16, 2.0, "done", output_tokens_per_second=1234.5,
            latency_seconds_p99=9.876, first_token_seconds_p99=0.25)
        for model, device, policy, kv in itertools.product(*axes, ("bf16", "int8"))
    ]  # fmt: skip
    result = SweepResult("trace", 9, tuple(rows), 8, 0)
    for width in (78, 100, 140):
        show_sweep(Console(width=width), result, "latency", 3)
        text = capsys.readouterr().out
        heads = next(line for line in text.splitlines() if line.startswith(" model"))
        assert heads.index("latency p99") < heads.index("tokens/s")
        assert ("TTFT p99" in heads) == (width > 78)
        assert ("lost" in heads) == (width == 140)
        assert "goodput" not in heads
        assert text.count("9.88 s") == 3
        assert text.count("1,234") == 3


def test_the_share_that_met_the_slo_stands_beside_the_goodput(capsys):
    rows = [
        Row("", model, "a100-80g", "paged", "bf16", 16, 2.0, "done", output_tokens_per_second=900.0,
            first_token_seconds_p99=0.25, goodput_requests_per_second=1.84, goodput_share=0.92)
        for model in ("llama-2-7b", "llama-3-8b")
    ]  # fmt: skip
    show_sweep(Console(width=60), SweepResult("trace", 9, tuple(rows), 2, 1), "goodput", 3)
    text = " ".join(capsys.readouterr().out.split())
    assert "model goodput met tokens/s" in text
    assert "llama-2-7b 1.84 92% 900" in text
    assert "2 of 2 replayed cells are shown; 1 were in the results file already." in text


def test_why_a_cluster_is_not_reached_and_what_to_do():
    """What Ray says of a token reaches the terminal alone; its own error has no number."""
    assert unreached("auto", ConnectionError("Please specify the one by --address")) == (
        "no Ray cluster runs on this machine: start one with `ray start --head`"
    )
    refused = unreached("10.0.0.1:6379", ConnectionRefusedError(111, "Connection refused"))
    assert refused.endswith("Connection refused: start one with `ray start --head`")
    shut = unreached("10.0.0.1:6379", ConnectionError("Failed to connect to Ray cluster"))
    assert "set RAY_AUTH_MODE=token" in shut
    assert "ray start" not in shut


def test_its_help_names_no_options_that_it_has_not():
    text = " ".join(
        CliRunner(env={"COLUMNS": "300"}).invoke(app, ["sweep", "--help"]).output.split()
    )
    assert "Paged cells share the blocks" in text
    assert "--compare" not in text


def test_reasons_stand_below_the_table(tmp_path):
    code, text, _ = outcome(tmp_path, *QUICK[:3], "--models", "llama-2-70b,gpt2", "--devices", "l4")
    assert code == 0
    assert "1 impossible: the weights take" in " ".join(text.split())
    code, text, _ = outcome(tmp_path, *QUICK[:3], "--models", "llama-2-70b", "--devices", "l4")
    assert code == 0
    assert "0 of 0 replayed cells are shown" in text


def test_its_options_have_the_defaults_of_replay():
    """Under the same name, or in the plural for what it varies; rates are its own."""
    swept, replayed = (
        {name: parameter.default for name, parameter in signature(command).parameters.items()}
        for command in (sweep_command, replay_command)
    )
    shared = swept.keys() & replayed.keys()
    assert len(shared) >= 30
    assert {name: swept[name] for name in shared} == {name: replayed[name] for name in shared}
    assert swept["devices"] == replayed["device"]
    own = {field.name: field.default for field in fields(Setup)}
    # A replay's own default is its profile's, and without one this.
    assert (replayed["kv_format"], swept["kv_formats"]) == (None, own["kv_format"])
    assert swept["block_sizes"] == str(replayed["block_size"])


def test_ray_stands_with_and_without_an_address():
    """A trace is no address, and what follows may be an option."""
    for text, address in (
        ("--ray", "auto"),
        ("--ray --workers 2", "auto"),
        ("--ray azure-conv-2023", "auto"),
        ("--ray poisson:rate=2", "auto"),
        ("--ray 10.0.0.1:6379", "10.0.0.1:6379"),
        ("--ray ray://head:10001", "ray://head:10001"),
        ("--ray auto --json", "auto"),
    ):
        named = with_address(text.split())
        assert named[:2] == ["--ray", address]
        assert [word for word in named if word != address] == [
            word for word in text.split() if word != address
        ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--models", "no-such-model"], "no model 'no-such-model'"),
        (["--models", "gpt2,gpt2"], "models: give different ones"),
        (["--models", ","], "models: give different ones, at least one"),
        (["--models", "gpt2", "--devices", "abacus"], "unknown device 'abacus'"),
        (["--models", "gpt2", "--policies", "pages"], "unknown policy 'pages'"),
        (["--models", "gpt2", "--kv-formats", "int3"], "unknown KV format 'int3'"),
        (["--models", "gpt2", "--block-sizes", "16,x"], "block size 'x': give a whole number"),
        (["--models", "gpt2", "--rates", "fast"], "rate 'fast': write requests per second"),
        (["--models", "gpt2", "--backlog", "--rates", "2"], "there is no rate to change"),
        (["--models", "gpt2", "--sort", "goodput"], "goodput needs an SLO"),
        (["--models", "gpt2", "--sort", "luck"], "sort 'luck': choose one of goodput, tokens"),
        (["--models", "gpt2", "--out", "x.csv"], "name a results file that ends in .parquet"),
        (["--models", "gpt2", "--out", "no/x.parquet"], "cannot be written: No such file"),
        (["--models", "gpt2", "--workers", "0"], "0 workers: give at least 1"),
        (["--models", "gpt2", "--ray", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
        (["--models", "gpt2", "--ray="], "Ray cluster '': write auto, host:port or ray://"),
    ],
)
def test_bad_input_is_one_line_and_a_failure(tmp_path, arguments, reason):
    code, output, errors = outcome(tmp_path, "azure-conv-2023", "--limit", "5", *arguments)
    assert (code, output) == (1, "")
    assert errors.startswith("kvhouse: ")
    assert reason in errors
    assert errors.count("\n") == 1
