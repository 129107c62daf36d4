"""A model's config as transformers reads it, from all that names a model; no weights are needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from kvhouse import spec
from kvhouse.engine.quiet import reading
from kvhouse.errors import UnsupportedModel
from kvhouse.spec.fields import show
from kvhouse.spec.hub import Repository
from kvhouse.spec.json_file import read_json_object
from kvhouse.spec.resolve import read_catalogue

#: Bytes of the longest config that is read from the hub.
_MOST_BYTES = 2**24


def read_model_config(source: str) -> PreTrainedConfig:
    """Read a config.

    Args:
        source: What ``spec.load`` takes.

    Raises:
        UnsupportedModel: The spec cannot be read, or transformers has no class for it.
        KvhouseError: Nothing is there, or it is damaged.
    """
    spec.load(source)  # its errors say best what is wrong
    entry = read_catalogue().get(source)
    if entry is not None:
        return _from_fields(entry["config"], Path(source))
    path = Path(source)
    if not path.exists():
        name, _, revision = source.removeprefix("hf:").partition("@")
        text = Repository(name, revision or None).read("config.json", _MOST_BYTES)
        return _from_fields(json.loads(text), Path(source))
    if path.is_dir() and (path / "config.json").exists():
        path /= "config.json"
    if path.suffix == ".json":
        return _from_fields(read_json_object(path), path)
    file = path if path.is_file() else next(path.glob("*.gguf"))
    with reading(file):
        config: PreTrainedConfig = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    return config


def _from_fields(fields: dict[str, Any], place: Path) -> PreTrainedConfig:
    rest = {name: value for name, value in fields.items() if name != "model_type"}
    model_type = str(fields.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModel(f"transformers has no class for model type {show(model_type)}")
    with reading(place):
        config: PreTrainedConfig = AutoConfig.for_model(model_type, **rest)
    return config
