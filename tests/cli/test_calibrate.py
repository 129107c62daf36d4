"""``kvhouse calibrate``, ``verify`` and ``replay --profile``, as a user runs them."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from typer.testing import CliRunner

from kvhouse.calibration import measure
from kvhouse.calibration.profile import read_profile
from kvhouse.cli import app
from kvhouse.cli import verify as verify_module
from kvhouse.devices import others
from kvhouse.engine import room
from kvhouse.errors import KvhouseError
from kvhouse.replayer import Stop

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
ENGINE = ("--kv-memory", "1MiB", "--max-length", "96", "--token-budget", "64", "--max-running", "4")
TRACE = "poisson:rate=200,prompt=uniform(4,20),output=uniform(2,8),requests=6,seed=2"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(directory)
    return str(directory)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measure, "ROUNDS", 1)
    return tmp_path / "cache" / "kvhouse" / "profiles"


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_a_profile_from_the_first_step_to_a_replay(model, tmp_path):
    file = tmp_path / "p.json"
    printed = json.loads(run("calibrate", model, *ENGINE, "--out", str(file), "--json").stdout)
    profile = read_profile(file)
    assert printed == json.loads(file.read_text())
    assert printed["residuals"]["steps"] > 10
    assert max(profile.rates.knots) == 64  # the token budget
    replay = ("replay", TRACE, "--model", model, "--profile", str(file), "--kv-memory", "1MiB")
    figures = json.loads(run(*replay, "--json").stdout)
    assert figures["timing"] == "modelled"
    assert figures["profile"]["made"] == profile.made
    assert figures["scenario"]["kv_format"] == "fp32"  # the profile's
    assert figures["makespan_seconds"] > 0
    assert "calibrated on" in " ".join(run(*replay).stdout.split())
    for wrong, reason in (
        (("--kv-format", "int8"), "of KV format 'fp32', not int8"),
        (("--block-size", "32"), "of block size 16, not 32"),
        (("--device", "l4"), "--profile says how long steps take"),
        (("--tp", "2"), "--profile says how long steps take"),
    ):
        with pytest.raises(KvhouseError, match=reason):
            run(*replay, *wrong)
    with pytest.raises(KvhouseError, match="not of llama-2-7b"):
        run("replay", TRACE, "--model", "llama-2-7b", "--profile", str(file))


@pytest.mark.parametrize(("taken", "warned"), [(0.02, False), (0.4, True)])
def test_work_that_goes_on_all_the_time_is_told(model, tmp_path, monkeypatch, taken, warned):
    class Watch:
        def share(self):
            return taken

    monkeypatch.setattr(others, "Watch", Watch)
    file = tmp_path / "p.json"
    result = run("calibrate", model, *ENGINE, "--out", str(file))
    assert read_profile(file).others_share == taken
    words = " ".join(result.stdout.split())
    assert f"Other work took {taken:.1%} of the cores meanwhile (measured)" in words
    assert ("warning: other work took 40% of the cores" in result.stderr) is warned


def test_verify_calibrates_once_and_says_so(model, cache, monkeypatch):
    verify = ("verify", model, "--trace", TRACE, *ENGINE)
    first = run(*verify, "--json")
    assert "calibrating first" in first.stderr
    found = json.loads(first.stdout)
    assert found["exact"] is True
    assert found["exactness"]["differences"] == []
    assert found["measured"]["finished"] == found["predicted"]["finished"] == 6
    names = {figure["name"]: figure for figure in found["figures"]}
    throughput = names["output_tokens_per_second"]
    expected = throughput["predicted"] / throughput["measured"] - 1
    assert throughput["error"] == pytest.approx(expected)
    assert len(list(cache.iterdir())) == 1
    # With a profile it takes the pool that is asked for, and no room for a calibration's.
    config = transformers.LlamaConfig(**SIZES)
    weights = sum(p.numel() for p in transformers.LlamaForCausalLM(config).parameters())
    few = 4 * weights + 2**20
    monkeypatch.setattr(room, "available_memory", lambda: few)
    second = run(*verify)
    assert "by the profile of" in second.stderr
    words = " ".join(second.stdout.split())
    assert "every figure is equal" in words
    assert "first token, p99" in words
    (kept,) = cache.iterdir()
    run(*verify, "--profile", str(kept))
    kept.unlink()
    with pytest.raises(KvhouseError, match="and 2 GiB of KV memory do not fit"):
        run(*verify)


def test_each_way_of_an_engine_has_a_profile_of_its_own(model, cache, tmp_path):
    file = tmp_path / "p.json"
    quick = (*ENGINE, "--kv-format", "int8")
    run("calibrate", model, *quick, "--kv-rotation", "--no-fast-path", "--out", str(file))
    profile = read_profile(file)
    assert (profile.kv_rotation, profile.fast_path) == (True, False)
    assert profile.paths.reason == "the fast path is off"
    verify = ("verify", model, "--trace", TRACE, *quick)
    same = run(*verify, "--kv-rotation", "--no-fast-path", "--profile", str(file), "--json")
    found = json.loads(same.stdout)
    assert found["exact"] is True
    assert found["paths"]["fast"] == found["profile"]["paths"]["fast"] == 0
    assert "warning" not in same.stderr
    for given, reason in (
        ((), "were rotated: calibrate with --no-kv-rotation"),
        (("--kv-rotation",), "without the fast path: calibrate with --fast-path"),
    ):
        with pytest.raises(KvhouseError, match=reason):
            run(*verify, *given, "--profile", str(file))
    run("calibrate", model, *quick)
    run("calibrate", model, *quick, "--kv-rotation")
    assert len({path.name for path in cache.iterdir()}) == 2


def test_a_run_that_went_another_way_than_its_profile_is_warned_of(model, tmp_path):
    file = tmp_path / "p.json"
    run("calibrate", model, *ENGINE, "--out", str(file))
    values = json.loads(file.read_text())
    assert values["paths"]["fast"] == SIZES["num_hidden_layers"]
    verify = ("verify", model, "--trace", TRACE, *ENGINE, "--profile", str(file))
    assert "computed" not in run(*verify).stderr
    values["paths"]["fast"] = 0
    file.write_text(json.dumps(values))
    assert "computed as transformers does, and this run by" in run(*verify).stderr
    for key in ("kv_rotation", "fast_path", "paths"):
        del values[key]
    file.write_text(json.dumps(values))
    assert "does not say which way the model was computed" in run(*verify).stderr


@pytest.mark.parametrize("given", [["--kv-rotation"], ["--no-fast-path"], ["--kv-memory", "1MiB"]])
def test_what_says_nothing_of_a_server_is_refused(given):
    with pytest.raises(KvhouseError, match=f"{given[0]} is for steps that are timed here"):
        run("calibrate", "smollm2", "--from-bench", "b.json", *given)


def test_a_damaged_profile_in_the_cache_is_made_anew(model, cache):
    run("calibrate", model, *ENGINE)
    (kept,) = cache.iterdir()
    kept.write_text("{}")
    result = run("verify", model, "--trace", TRACE, *ENGINE, "--json")
    assert "the kept profile is of no use" in result.stderr
    assert read_profile(kept).residuals.steps > 10


def test_a_profile_of_another_machine_is_used_with_a_warning(model, tmp_path):
    file = tmp_path / "p.json"
    run("calibrate", model, *ENGINE, "--out", str(file))
    values = json.loads(file.read_text())
    values["machine"]["processor"] = "A slide rule"
    file.write_text(json.dumps(values))
    result = run("verify", model, "--trace", TRACE, *ENGINE, "--profile", str(file))
    assert "another machine (A slide rule" in result.stderr


def test_a_difference_is_shown_and_the_exit_code_says_so(model, monkeypatch):
    from kvhouse.calibration import verify

    hold = verify.hold
    monkeypatch.setattr(
        verify, "hold", lambda scenario, run, record: hold(scenario, _other(run), record)
    )
    result = run("verify", model, "--trace", TRACE, *ENGINE, code=verify_module.DIFFERENT)
    assert "these differ, which is a bug in kvhouse: preemptions" in " ".join(result.stdout.split())


def _other(result):
    from dataclasses import replace

    return replace(result, preemptions=7)


def test_ctrl_c_leaves_a_partial_profile(model, tmp_path, monkeypatch):
    real = measure.Bench.measure

    def ended(self, *, stop: Stop, **settings):
        steps = []

        def count(_):
            steps.append(1)
            stop.asked = len(steps) >= 6

        return real(self, stop=stop, **settings | {"on_step": count})

    monkeypatch.setattr(measure.Bench, "measure", ended)
    file = tmp_path / "p.json"
    result = run("calibrate", model, *ENGINE, "--out", str(file), "--json", code=130)
    assert json.loads(result.stdout)["partial"] is True
    assert not file.exists()
    assert read_profile(tmp_path / "p.json.partial").partial
    assert "partial: ended early" in result.stderr
    assert not (tmp_path / "cache").exists()


def test_ctrl_c_leaves_a_verification_as_it_leaves_other_commands(model, monkeypatch):
    from kvhouse.calibration import verify

    run("calibrate", model, *ENGINE)
    real = verify.verify

    def ended(*given, stop, **settings):
        stop.asked = True
        return real(*given, stop=stop, **settings)

    monkeypatch.setattr(verify, "verify", ended)
    result = run("verify", model, "--trace", TRACE, *ENGINE, "--json", code=130)
    assert "of 6 requests finished" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("seconds", ["1", "nan", "1e9"])
def test_too_short_and_too_long(seconds):
    with pytest.raises(KvhouseError, match="--seconds"):
        run("calibrate", "smollm2", "--seconds", seconds)


def test_a_profile_that_is_not_there():
    with pytest.raises(KvhouseError, match=r"nowhere\.json"):
        run("replay", TRACE, "--model", "smollm2", "--profile", "nowhere.json")
