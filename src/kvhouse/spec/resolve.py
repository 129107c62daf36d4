"""From what a user names to a ``ModelSpec``: a catalogue name, a directory, a file, a hub id."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kvhouse.errors import SpecError
from kvhouse.spec.fields import show, show_path
from kvhouse.spec.model import ModelSpec

_ACCEPTED = (
    "give a catalogue name, a directory with a config.json, a config file (.json), "
    "a model file (.gguf) or a model of the Hugging Face Hub (org/name)"
)
_HUB = "hf:"
_MOST_NAME = 250
#: What the hub allows as ``org/name``, and after it a GGUF file or a revision.
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(/[^@]+\.(?i:gguf))?(@[^@]+)?", re.ASCII)


def load(source: str | Path) -> ModelSpec:
    """Read what a model keeps.

    Args:
        source: A name of ``catalogue()``; a directory with a ``config.json`` (the headers of
            ``.safetensors`` files beside it give the exact weights) or with the ``.gguf`` files
            of one model; a config file with the suffix ``.json``; a model file with the suffix
            ``.gguf``; or a model of the Hugging Face Hub, ``org/name``, of which the config and
            the headers are read over the network, never the weights. ``@revision`` after a hub
            name picks a branch, tag or commit, and ``org/name/file.gguf`` a file of it.
            A name of the catalogue goes before a path, and a path before the hub; write
            ``./name`` or pass a ``Path`` for a path, and ``hf:org/name`` for the hub.

    Raises:
        SpecError: Nothing is there, or it is damaged or impossible.
        UnsupportedModel: The model is of a kind that cannot be counted yet.
    """
    if isinstance(source, Path):
        return _load_path(str(source))
    if not isinstance(source, str):
        raise SpecError(f"model {show(source)}: give a name or a path")
    entry = read_catalogue().get(source)
    if entry is not None:
        from kvhouse.spec.hf_config import read_config

        return read_config(entry["config"], source, f"catalogue entry {source!r}")
    name = hub_name(source)
    if name is None:
        return _load_path(source)
    return _load_hub(name) if source.startswith(_HUB) else _load_hub_or_path(source)


def hub_name(source: str) -> str | None:
    """The model of the Hugging Face Hub that a source of ``load`` means, without ``hf:``.

    Returns:
        ``org/name`` with a GGUF file and a revision where given; None where another is meant.

    Raises:
        SpecError: It begins with ``hf:`` and is no name of the hub.
    """
    if source.startswith(_HUB):
        name = source.removeprefix(_HUB)
        if not _HUB_ID.fullmatch(name):
            raise SpecError(
                f"{show(source)}: not a model of the hub: write hf:org/name or "
                "hf:org/name/FILE.gguf, either with @revision at the end"
            )
        return name
    if source in read_catalogue() or not _may_be_hub_name(source) or Path(source).exists():
        return None
    return source


def catalogue() -> tuple[str, ...]:
    """The names of the models that are built in."""
    return tuple(read_catalogue())


def read_catalogue() -> dict[str, dict[str, Any]]:
    """The built-in models: for each name its source, its config and the package of its GGUF."""
    import json

    text = Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def _load_hub(name: str) -> ModelSpec:
    from kvhouse.spec.hub import read_hub

    return read_hub(name)


def _load_hub_or_path(source: str) -> ModelSpec:
    """A model of the hub, by a name that could have been meant otherwise."""
    from kvhouse.spec.hub import NoModel

    try:
        return _load_hub(source)
    except NoModel as error:
        hint = _suggestions(source.partition("@")[0])
        raise SpecError(f"no file or directory {show(source)}; {hint}{error}") from None


def _may_be_hub_name(source: str) -> bool:
    """Whether a name is the hub's; one slash and a file's suffix make it a path."""
    file = source.count("/") == 1 and source.lower().endswith((".json", ".gguf"))
    return len(source) < _MOST_NAME and not file and _HUB_ID.fullmatch(source) is not None


def _load_path(source: str) -> ModelSpec:
    path = Path(source)
    try:
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):
        is_directory, exists = False, False
    if not source or not exists:
        raise SpecError(f"no model {show(source)}: {_suggestions(source)}{_ACCEPTED}")
    if is_directory:
        return _load_directory(path, source)
    if path.suffix.lower() == ".json":
        from kvhouse.spec.hf_config import read_config_file

        return read_config_file(path, source)
    if path.suffix.lower() == ".gguf":
        from kvhouse.spec.gguf_reader import read_gguf

        return read_gguf(path, source)
    raise SpecError(f"{show_path(path)}: neither .json nor .gguf; {_ACCEPTED}")


def _load_directory(path: Path, source: str) -> ModelSpec:
    if (path / "config.json").exists():
        from kvhouse.spec.checkpoint import read_checkpoint

        return read_checkpoint(path, source)
    from kvhouse.spec.gguf_reader import read_gguf, whole_models

    try:
        found = whole_models(sorted(one.name for one in path.iterdir()))
    except OSError as error:
        raise SpecError(f"{show_path(path)}: cannot be read: {error.strerror or error}") from None
    if not found:
        raise SpecError(
            f"{show_path(path)}: no config.json and no .gguf file in this directory; {_ACCEPTED}"
        )
    if len(found) > 1:
        names = ", ".join(map(show_path, found[:10]))
        raise SpecError(f"{show_path(path)}: holds several models: {names}; name one")
    return read_gguf(path / found[0], source)


def _suggestions(source: str) -> str:
    from difflib import get_close_matches

    last = source.lower().rstrip("/").rsplit("/", 1)[-1][:80]
    close = get_close_matches(last, catalogue())
    return f"did you mean {' or '.join(close)}? Else: " if close else ""
