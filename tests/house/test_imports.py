"""The rooms' imports run downwards only, and the lint that says so can fail."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = ("core", "layout", "formats", "errors")
FILE_CALLS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    """Check the package that lies in ``source`` against the contracts in pyproject.toml."""
    return subprocess.run(
        [
            Path(sys.executable).with_name("lint-imports"),
            ROOT / "pyproject.toml",
            "--no-cache",
            "--no-logo",
        ],
        env=os.environ | {"PYTHONPATH": str(source), "COLUMNS": "200", "NO_COLOR": "1"},
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )


def impure_lines(module: Path) -> list[int]:
    """Lines that open a file or rebind a global."""
    lines = []
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Global):
            lines.append(node.lineno)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            if name in FILE_CALLS:
                lines.append(node.lineno)
    return lines


@pytest.fixture
def copied_source(tmp_path: Path) -> Path:
    source = tmp_path / "src"
    shutil.copytree(
        ROOT / "src" / "kvhouse",
        source / "kvhouse",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return source


def test_imports_keep_every_contract() -> None:
    result = lint(ROOT / "src")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("layout/layout.py", "from kvhouse import engine", "run downwards only"),
        ("spec/model.py", "from kvhouse.layout import KVLayout", "run downwards only"),
        ("planner/__init__.py", "def f():\n    import kvhouse.engine", "run downwards only"),
        ("attic.py", "", "run downwards only"),
        ("core/step.py", "import time", "know no clock"),
        ("spec/model.py", "def f():\n    from asyncio import sleep", "know no clock"),
        ("formats.py", "from pathlib import Path", "nothing touches files"),
        ("planner/__init__.py", "def f():\n    import torch.nn", "Tensors live in the engine"),
        ("core/step.py", "def f():\n    from kvhouse import plan", "front door"),
    ],
)
def test_a_wrong_import_breaks_its_contract(
    copied_source: Path, module: str, line: str, contract: str
) -> None:
    with (copied_source / "kvhouse" / module).open("a") as file:
        file.write(f"\n{line}\n")
    result = lint(copied_source)
    assert result.returncode == 1, result.stdout + result.stderr
    broken = [row for row in result.stdout.splitlines() if " BROKEN" in row]
    assert any(contract in row for row in broken), result.stdout


def test_lower_rooms_open_no_file_and_rebind_no_global() -> None:
    package = ROOT / "src" / "kvhouse"
    modules = [path for room in PURE for path in (package / room).rglob("*.py")]
    modules += [package / f"{room}.py" for room in PURE if (package / f"{room}.py").exists()]
    assert len(modules) > len(PURE)
    assert {str(path): lines for path in modules if (lines := impure_lines(path))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "open('a')",
        "from pathlib import Path\nPath('a').read_text()",
        "def f():\n    global x\n    x = 1",
    ],
)
def test_an_opened_file_or_a_rebound_global_is_seen(tmp_path: Path, code: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(code)
    assert impure_lines(module)
