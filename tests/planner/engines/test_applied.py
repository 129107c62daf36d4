"""An engine's view of a planned case: its memory, and the flags that make the engine agree."""

from __future__ import annotations

import re
import shlex

import pytest

from kvhouse.errors import KvhouseError
from kvhouse.planner.cases import case_for
from kvhouse.planner.engines import ENGINES
from kvhouse.planner.engines.applied import applied
from kvhouse.spec import catalogue

GIB = 2**30


def words(flags):
    """The flags as a shell would hand them over."""
    return dict((*shlex.split(flag), "")[:2] for flag in flags)


def test_windows_can_be_planned_with_given_memory():
    """vLLM's batch depends on the device, which the case names whatever memory is given."""
    given = applied("vllm", case_for("gemma-3-27b", "h100-80g", kv_memory=10 * GIB), {})
    assert given.available_bytes == 10 * GIB
    assert any("16,384 tokens in flight" in note for note in given.notes)
    small = applied("vllm", case_for("gemma-3-27b", "a10-24g", kv_memory=10 * GIB), {})
    assert any("4,096 tokens in flight" in note for note in small.notes)


def test_memory_is_stated_as_it_was_given():
    given = case_for("llama-3-8b", "h100-80g", kv_memory=10 * GIB)
    assert words(applied("vllm", given, {}).flags) == {
        "--max-model-len": "8192",
        "--kv-cache-memory-bytes": str(10 * GIB),
    }
    # 0.9 has no such option; 10 GiB are 5,120 blocks of 16 tokens of 131,072 bytes.
    assert words(applied("vllm", given, {"version": "0.9"}).flags) == {
        "--max-model-len": "8192",
        "--num-gpu-blocks-override": "5120",
    }
    derived = case_for("llama-3-8b", "h100-80g", utilization=0.8)
    assert words(applied("vllm", derived, {}).flags) == {
        "--max-model-len": "8192",
        "--gpu-memory-utilization": "0.8",
    }


@pytest.mark.parametrize(
    ("engine", "kv_format", "options", "expected"),
    [
        ("vllm", "fp8", {"dtype": "float16"}, {"--kv-cache-dtype": "fp8", "--dtype": "float16"}),
        ("vllm", "bf16", {"blocks": "100"}, {"--num-gpu-blocks-override": "100"}),
        ("vllm-v0", "fp8", {}, {"--kv-cache-dtype": "fp8", "--tensor-parallel-size": "2"}),
        ("sglang", "fp8", {}, {"--kv-cache-dtype": "fp8_e4m3", "--tp-size": "2"}),
        ("sglang", "bf16", {"page_size": "16"}, {"--page-size": "16"}),
        ("llama.cpp", "int8", {}, {"--cache-type-k": "q8_0", "--cache-type-v": "q8_0"}),
        ("llama.cpp", "bf16", {"swa_full": "true"}, {"--swa-full": "", "--parallel": "1"}),
    ],
)
def test_what_differs_from_the_defaults_is_among_the_flags(engine, kv_format, options, expected):
    case = case_for("llama-3-8b", "h100-80g", tp=2, kv_format=kv_format, kv_memory=10 * GIB)
    assert expected.items() <= words(applied(engine, case, options).flags).items()


def test_sglang_is_given_the_pool_in_its_own_tokens():
    seen = applied("sglang", case_for("llama-3-8b", "h100-80g", kv_memory=10 * GIB), {})
    assert words(seen.flags)["--max-total-tokens"] == str(seen.kv_tokens) == str(10 * GIB // 131072)


def test_weights_that_do_not_fit_are_said_to():
    case = case_for("llama-3-70b", "a10-24g")
    for engine in ("vllm", "vllm-v0"):
        seen = applied(engine, case, {})
        assert seen.log_lines[-1].startswith("ValueError: No available memory for the cache blocks")
    assert not applied("vllm", case, {}).flags
    assert any("cannot start" in note for note in applied("vllm", case, {}).notes)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_flag_is_an_option_and_its_value(engine):
    for model in catalogue():
        try:
            seen = applied(engine, case_for(model, "b200"), {})
        except KvhouseError:
            continue
        for flag in seen.flags:
            assert re.fullmatch(r"--[a-z-]+( [\w.]+)?", flag)
        assert len(words(seen.flags)) == len(seen.flags)
