"""The compiled variant of the same sources: it is built from the clone and replays the same.

Needs what `make setup` needs: a C compiler, and PyPI for the tools of the build.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
#: Prints where the modules of the loops come from.
WHERE = """
import json, importlib
names = ("core.leap", "core.scheduler", "core.memory", "costs.line", "replayer.drive")
print(json.dumps([importlib.import_module(f"kvhouse.{name}").__file__ for name in names]))
"""

#: What the build asks first, without hatchling, which only a build has.
REQUIRE = """
import sys, types
stub = types.ModuleType("stub")
stub.BuildHookInterface = list
sys.modules["hatchling.builders.hooks.plugin.interface"] = stub
from hatch_build import require_compiler
require_compiler()
"""


def run(command, **variables):
    """What a command prints; without it, all that it said."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=CLONE,
        env={**os.environ, **variables},
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of a compiled wheel's files."""
    folder = tmp_path_factory.mktemp("compiled")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), "."]
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
    assert shutil.which(compiler.split()[0]), f"{compiler} is missing: CONTRIBUTING.md asks for it"
    run(build, HATCH_BUILD_HOOK_ENABLE_CUSTOM="1")
    assert not list((CLONE / "src").rglob("*.so")), "a build leaves nothing in the clone"
    (wheel,) = folder.glob("*.whl")
    assert "none-any" not in wheel.name
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "files")
    return folder / "files"


def test_without_a_compiler_the_build_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", REQUIRE],
        capture_output=True,
        text=True,
        cwd=CLONE,
        env={**os.environ, "PATH": str(tmp_path), "CC": "cc -pthread"},
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("compiling kvhouse needs a C compiler, and there is no cc -pthr")
    assert done.stderr.count("\n") == 1


def test_it_is_what_python_imports(installed):
    places = json.loads(run([sys.executable, "-c", WHERE], PYTHONPATH=str(installed)))
    for place in map(Path, places):
        assert installed in place.parents
        assert place.suffix in (".so", ".pyd")
        assert place.with_name(place.name.split(".")[0] + ".py").exists()


def test_golden_scenarios_come_out_byte_for_byte(installed):
    """Plan logs, events, records and results, stepping and leaping; and the times of lines."""
    tests = ["tests/replayer/test_golden.py", "tests/test_fitted.py", "tests/test_costs.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    run(command, PYTHONPATH=str(installed))
