"""Commands that need no tensors start without the libraries for tensors."""

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "numba", "tokenizers", "safetensors"}

#: Runs the body, then prints the names of all imported modules as the last line.
RECORDER = """
import json, sys
try:
{body}
finally:
    print()
    print(json.dumps(sorted(sys.modules)))
"""
COMMAND = """
    from kvhouse.cli import main
    sys.argv = ["kvhouse", *{arguments}]
    sys.exit(main())
"""


def modules_after(body: str) -> set[str]:
    """Run a Python program in a process of its own; the modules that it had imported at the end."""
    result = subprocess.run(
        [sys.executable, "-c", RECORDER.format(body=body)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    modules: list[str] = json.loads(result.stdout.splitlines()[-1])
    return set(modules)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["plan", "--help"],
        ["replay", "--help"],
        ["run", "--help"],
        ["sweep", "--help"],
        ["chat", "--help"],
        ["bench", "--help"],
        ["demo"],
        ["demo", "growth"],
        ["demo", "warehouse"],
        ["demo", "oom"],
        ["models"],
        ["--version"],
        ["plan", "llama-2-7b", "--device", "a100-80g"],
        ["plan", "llama-2-7b", "--device", "a100-80g", "--json"],
    ],
    ids=" ".join,
)
def test_a_command_without_tensors_imports_none(arguments: list[str]) -> None:
    modules = modules_after(COMMAND.format(arguments=arguments))
    assert "kvhouse.cli" in modules
    assert modules & HEAVY == set()


def test_the_package_itself_imports_nothing_heavy() -> None:
    names = "kv_cache_gb, ModelSpec, KVLayout, plan, replay"
    modules = modules_after(f"    import kvhouse\n    from kvhouse import {names}")
    assert modules & HEAVY == set()


def test_the_engine_is_there_when_asked_for() -> None:
    modules = modules_after("    from kvhouse import Engine")
    assert "torch" in modules


def test_help_does_not_load_what_only_commands_need() -> None:
    modules = modules_after(COMMAND.format(arguments=["--help"]))
    assert modules & {"numpy", "pydantic", "gguf"} == set()


@pytest.mark.parametrize("model", ["llama-2-7b", "gemma-3-27b", "deepseek-v3"])
def test_a_plan_loads_no_more_than_it_needs(model: str) -> None:
    modules = modules_after(COMMAND.format(arguments=["plan", model, "--device", "h200"]))
    assert "kvhouse.planner.remedies" in modules
    unneeded = {"numpy", "pydantic", "gguf", "httpx", "asyncio", "kvhouse.planner.engines.registry"}
    assert modules & unneeded == set()
