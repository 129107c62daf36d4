"""A model's files from the Hugging Face Hub, kept in the hub's own cache on this machine."""

from __future__ import annotations

from pathlib import Path

from kvhouse.engine.quiet import quiet
from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show_path

#: What a model directory needs: configs, weights, tokenizers and chat templates; no pickles.
_WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def download(name: str) -> Path:
    """The directory, or the GGUF file, of a hub model; what is not there is downloaded.

    Args:
        name: ``org/name`` or ``org/name/file.gguf``, either with ``@revision``.

    Raises:
        KvhouseError: It is not on this machine and cannot be downloaded.
    """
    there = downloaded(name)
    return there if there is not None else _fetch(name, offline=False)


def downloaded(name: str) -> Path | None:
    """The same, of what was downloaded earlier; None where files are missing."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        there = _fetch(name, offline=True)
    except LocalEntryNotFoundError:
        return None
    return there if there.is_file() or _complete(there) else None


def _fetch(name: str, *, offline: bool) -> Path:
    """Ask huggingface_hub; errors of a network it is allowed to use become one line."""
    import huggingface_hub as hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    path, _, revision = name.partition("@")
    owner, model, *inner = path.split("/")
    repository, file, at = f"{owner}/{model}", "/".join(inner), revision or None
    try:
        with quiet():
            if file:
                return Path(
                    hub.hf_hub_download(repository, file, revision=at, local_files_only=offline)
                )
            return Path(
                hub.snapshot_download(
                    repository,
                    revision=at,
                    allow_patterns=list(_WANTED),
                    local_files_only=offline,
                )
            )
    except Exception as error:
        if offline and isinstance(error, LocalEntryNotFoundError):
            raise
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise KvhouseError(f"hub model {show_path(name)}: cannot be downloaded: {line}") from None


def _complete(directory: Path) -> bool:
    """Whether a snapshot has all the weights that it names; an earlier download may have ended."""
    import json

    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return (directory / "model.safetensors").is_file()
    names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return all((directory / one).is_file() for one in names)
