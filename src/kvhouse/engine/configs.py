"""A model's config as transformers reads it, from all that names a model; weights are not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from kvhouse.engine.quiet import quiet, reading
from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.spec.fields import show
from kvhouse.spec.resolve import read_catalogue


def read_model_config(source: str) -> PreTrainedConfig:
    """Read a config.

    Args:
        source: A name of the catalogue, a directory with a ``config.json``, a config file, a
            ``.gguf`` file, or a model of the Hugging Face Hub, ``org/name``.

    Raises:
        UnsupportedModel: Transformers has no class for it.
        KvhouseError: Nothing is there, or it is damaged.
    """
    entry = read_catalogue().get(source)
    if entry is not None:
        return _from_fields(entry["config"])
    path = Path(source)
    if path.suffix == ".gguf":
        options: dict[str, Any] = {"gguf_file": path.name}
        path = path.parent
    else:
        options = {}
    place: Path | str = path if path.exists() else source.removeprefix("hf:")
    with reading(Path(source)):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            place, trust_remote_code=False, **options
        )
    return config


def _from_fields(fields: dict[str, Any]) -> PreTrainedConfig:
    model_type = fields["model_type"]
    rest = {name: value for name, value in fields.items() if name != "model_type"}
    try:
        with quiet():
            config: PreTrainedConfig = AutoConfig.for_model(model_type, **rest)
    except ValueError as error:
        raise UnsupportedModel(f"transformers has no class for {show(model_type)}") from error
    return config
