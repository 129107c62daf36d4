"""From what a user names to a ``ModelSpec``: a catalogue name, a directory, a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvhouse.errors import SpecError
from kvhouse.spec.fields import show, show_path
from kvhouse.spec.model import ModelSpec

_ACCEPTED = (
    "give a catalogue name, a directory with a config.json, a config file (.json) "
    "or a model file (.gguf)"
)


def load(source: str | Path) -> ModelSpec:
    """Read what a model keeps.

    Args:
        source: A name of ``catalogue()``, a directory with a ``config.json``, a config file with
            the suffix ``.json`` or a model file with the suffix ``.gguf``. A name of the catalogue
            goes before a path; write ``./name`` or pass a ``Path`` for a path of that name.

    Raises:
        SpecError: Nothing is there, or it is damaged or impossible.
        UnsupportedModel: The model is of a kind that cannot be counted yet.
    """
    if isinstance(source, str):
        entry = read_catalogue().get(source)
        if entry is not None:
            from kvhouse.spec.hf_config import read_config

            return read_config(entry["config"], source, f"catalogue entry {source!r}")
    return _load_path(str(source))


def catalogue() -> tuple[str, ...]:
    """The names of the models that are built in."""
    return tuple(read_catalogue())


def read_catalogue() -> dict[str, dict[str, Any]]:
    """The built-in models: for each name its source, its config and the package of its GGUF."""
    import json

    text = Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def _load_path(source: str) -> ModelSpec:
    path = Path(source)
    try:
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):
        is_directory, exists = False, False
    if not source or not exists:
        raise SpecError(f"no model {show(source)}: {_suggestions(source)}{_ACCEPTED}")
    if is_directory:
        config = path / "config.json"
        if not config.exists():
            raise SpecError(f"{show_path(path)}: no config.json in this directory; {_ACCEPTED}")
        path = config
    if path.suffix.lower() == ".json":
        from kvhouse.spec.hf_config import read_config_file

        return read_config_file(path, source)
    if path.suffix.lower() == ".gguf":
        from kvhouse.spec.gguf_reader import read_gguf

        return read_gguf(path, source)
    raise SpecError(f"{show_path(path)}: neither .json nor .gguf; {_ACCEPTED}")


def _suggestions(source: str) -> str:
    from difflib import get_close_matches

    last = source.lower().rstrip("/").rsplit("/", 1)[-1][:80]
    close = get_close_matches(last, catalogue())
    return f"did you mean {' or '.join(close)}? Else " if close else ""
