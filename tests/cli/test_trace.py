"""``kvhouse trace``, and what the other commands take of a trace, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvhouse.replayer import read_trace

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1"}


def kvhouse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KVHOUSE, *arguments], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )


def succeed(*arguments: str) -> str:
    done = kvhouse(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_trace_as_json_and_as_a_table():
    data = json.loads(succeed("trace", "mooncake-conv", "--json"))
    assert (data["format"], data["requests"]) == ("mooncake", 64)
    share = data["blocks"]["repeated_share"]
    text = succeed("trace", "mooncake-conv")
    assert f"({share:.2%})" in text
    assert f"{data['prompt_tokens']['total']:,}" in text
    azure = succeed("trace", "azure-conv-2023")
    assert "seen before" not in azure
    assert "tenants" not in azure


def test_writing_cuts_out_converts_and_describes_at_once(tmp_path):
    path = str(tmp_path / "part.parquet")
    options = ["--start", "30", "--duration", "40", "--scale-rate", "2", "--scale-lengths", "0.5"]
    options += ["--sample", "0.5", "--sample-seed", "3", "--limit", "40", "--cut", "600"]
    written = json.loads(succeed("trace", "azure-conv-2023", *options, "--write", path, "--json"))
    expected = read_trace(
        "azure-conv-2023",
        start=30,
        duration=40,
        scale_rate=2,
        scale_lengths=0.5,
        sample=0.5,
        seed=3,
        limit=40,
        max_length=600,
    )
    assert read_trace(path).requests == expected.requests
    assert written["requests"] == len(expected.requests) == 40
    assert written["cut"] == expected.cut > 0
    again = json.loads(succeed("trace", path, "--json"))
    assert again["request_tokens"] == written["request_tokens"]
    assert again["gap_cv"] == written["gap_cv"]


def test_replay_takes_the_same_part():
    description = "gamma:rate=9,cv=2,prompt=50,output=5,requests=60,tenants=2"
    options = ["--start", "1", "--duration", "4", "--scale-rate", "3", "--sample", "0.7"]
    described = json.loads(succeed("trace", description, *options, "--cut", "54", "--json"))
    replayed = json.loads(
        succeed("replay", description, "--model", "llama-2-7b", *options, "--cut", "54", "--json")
    )
    assert replayed["submitted"] == described["requests"]
    assert replayed["prompt_tokens"] == described["prompt_tokens"]["total"]
    assert replayed["scenario"]["selection"] == described["selection"]
    assert replayed["scenario"]["cut"] == described["cut"] == described["requests"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "no trace nowhere: give a file or one of azure-conv-2023"),
        (["poisson:rate=0,prompt=1,output=1,requests=1"], "poisson:rate=0,"),
        (["azure-conv-2023", "--write", "t.txt"], "t.txt: the name must end with"),
        (["azure-conv-2023", "--sample", "2"], "sample 2.0: give a share"),
        (["azure-conv-2023", "--start", "9e9"], "holds no request in the part"),
        (["a\nb"], r"no trace 'a\nb'"),
    ],
)
def test_bad_input_is_one_line_and_a_failure(arguments, reason):
    done = kvhouse("trace", *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_run_refuses_what_chooses_from_a_trace_with_a_prompt():
    done = kvhouse("run", "smollm2", "Why?", "--sample", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert "go with --trace" in done.stderr


def test_sigterm_ends_a_writing_and_leaves_nothing(tmp_path):
    description = "poisson:rate=1,prompt=1,output=1,requests=100000000"
    path = tmp_path / "t.jsonl"
    process = subprocess.Popen(
        [KVHOUSE, "trace", description, "--write", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    while not list(tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
