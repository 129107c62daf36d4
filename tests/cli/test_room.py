"""Every command that loads a model says what has no room before it looks for weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from typer.testing import CliRunner

from kvhouse import spec
from kvhouse.cli import app
from kvhouse.engine import room
from kvhouse.engine.quality import Variant, kv_bytes
from kvhouse.errors import KvhouseError

CONFIG = transformers.LlamaConfig(
    vocab_size=101,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    architectures=["LlamaForCausalLM"],
)
WEIGHTS = sum(p.numel() for p in transformers.LlamaForCausalLM(CONFIG).parameters())
#: Bytes of a token's keys and values in float32: 3 layers, 2 heads, 8 elements, K and V.
TOKEN = 3 * 2 * 8 * 2 * 4
KV = ("--kv-memory", "1MiB")
TRACE = ("--trace", "backlog:prompt=4,output=2,requests=1")
LESS = "ask for less with --kv-memory or --dtype"
#: What is asked, the pool that it takes, and what helps.
COMMANDS = {
    "run": (("run", "hello", *KV), "1 MiB", LESS),
    "run --trace": (("run", *TRACE, *KV), "1 MiB", LESS),
    "chat": (("chat", *KV), "1 MiB", LESS),
    "verify, calibrating first": (("verify", *TRACE, *KV), "2 GiB", "is kept, so steps are timed"),
    "verify, more than that": (("verify", *TRACE, "--kv-memory", "3GiB"), "3 GiB", LESS),
    "calibrate": (("calibrate", *KV), "1 MiB", LESS),
    "bench, a load": (("bench", *TRACE, *KV), "1 MiB", LESS),
}
UNITS = {"MiB": 2**20, "GiB": 2**30}


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A directory that describes a model, and holds no weights; no profile of it is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    return str(tmp_path)


@pytest.fixture
def free(monkeypatch):
    """Sets the bytes that the machine has free."""
    return lambda size: monkeypatch.setattr(room, "available_memory", lambda: size)


def run(command, *arguments):
    with pytest.raises(KvhouseError) as refused:
        CliRunner().invoke(app, [command, *arguments], catch_exceptions=False)
    return str(refused.value)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_byte_too_little_is_told_before_weights_are_looked_for(model, free, name):
    (command, *arguments), pool, advice = COMMANDS[name]
    arguments = [model, *arguments]
    number, unit = pool.split()
    needed = 4 * WEIGHTS + int(number) * UNITS[unit]
    free(needed - 1)
    refusal = run(command, *arguments)
    assert f"of weights and {pool} of KV memory do not fit in the" in refusal
    assert advice in refusal
    free(needed)
    assert "holds no weights" in run(command, *arguments)


def test_a_batch_takes_what_it_holds_and_not_the_default(model, free):
    batch = ("bench", model, "--concurrency", "3", "--prompt", "20", "--generate", "12")
    needed = 4 * WEIGHTS + 3 * 32 * TOKEN  # two blocks of 16 tokens each
    free(needed - 1)
    assert "time fewer or shorter requests" in run(*batch)
    free(needed)
    assert "holds no weights" in run(*batch)


def test_quality_holds_a_window_in_each_format(model, free):
    given = ("quality", model, "--kv-format", "bf16", "--window", "32")
    needed = 4 * WEIGHTS + 32 * TOKEN + 32 * TOKEN // 2
    assert kv_bytes(spec.load(model), [Variant("bf16")], 32, "float32") == needed - 4 * WEIGHTS
    free(needed - 1)
    assert "give a smaller --window" in run(*given)
    free(needed)
    assert "holds no weights" in run(*given)


def test_a_tier_in_this_machines_memory_counts_too(model, free):
    tiers = ("--host-memory", "2MiB", *KV)
    free(4 * WEIGHTS + 3 * 2**20 - 1)
    assert "1 MiB of KV memory and 2 MiB of host memory below it" in run(
        "bench", model, *TRACE, *tiers
    )
    free(4 * WEIGHTS + 3 * 2**20)
    assert "holds no weights" in run("bench", model, *TRACE, *tiers)


def test_weights_of_unknown_size_are_not_called_nothing(model, free):
    """Of a checkpoint in a format that only its files' headers would explain."""
    values = CONFIG.to_dict() | {"quantization_config": {"quant_method": "nobody-knows"}}
    Path(model, "config.json").write_text(json.dumps(values))
    described = spec.load(model)
    assert described.parameters is None
    free(2**20 - 1)
    for host, wanted in (
        (0, "1 MiB of KV memory do not fit in the"),
        (2**21, "1 MiB of KV memory and 2 MiB of host memory below it do not fit in the"),
    ):
        with pytest.raises(KvhouseError, match=f": {wanted}") as refused:
            room.require_room(described, 2**20, "float32", host_bytes=host)
        assert "of weights" not in str(refused.value)
    free(2**20)
    room.require_room(described, 2**20, "float32")


def test_a_machine_that_does_not_tell_is_given_the_benefit_of_the_doubt(model, free):
    free(None)
    assert "holds no weights" in run("run", model, "hello", *KV)
