"""Reader of checkpoints: a config and the headers of the safetensors files beside it.

The config says what is kept, the headers which weights there are, to the byte. All tensors count,
those of an image or sound part included, since an engine loads them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from kvhouse.errors import SpecError
from kvhouse.spec.fields import show, show_path
from kvhouse.spec.hf_config import read_config, read_config_file
from kvhouse.spec.json_file import MOST_BYTES, parse_json_object
from kvhouse.spec.model import DTYPE_BYTES, ModelSpec
from kvhouse.spec.packing import packing_of
from kvhouse.spec.safetensors_header import (
    PREFIX_BYTES,
    StoredTensor,
    header_bytes,
    parse_header,
)
from kvhouse.spec.stored_weights import StoredWeights, count_stored

_QUANTIZED = "hf_quant_config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
#: The index of a model with 200,000 tensors has some 25 MB.
MOST_INDEX_BYTES = 64 * 2**20
_MOST_SHARDS = 2**12
_SHARD = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
_EXPERTS_USED = (
    *("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k"),
    *("top_k_experts", "num_selected_experts", "n_active_experts"),
)


class Source(Protocol):
    """Where the files of a checkpoint are: a directory, or a repository of the hub."""

    def where(self, name: str) -> str:
        """How messages call a file."""

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""

    def read(self, name: str, most: int) -> bytes:
        """A whole file of at most ``most`` bytes."""

    def head(self, name: str, start: int, stop: int) -> tuple[bytes, int]:
        """Bytes ``start`` to ``stop`` of a file, fewer where it ends, and the file's size."""

    def lone(self) -> str | None:
        """The one safetensors file, under whatever name; None where there is none.

        Raises:
            SpecError: There are several, and nothing says which belong to the model.
        """


class Directory:
    """A checkpoint in a directory."""

    def __init__(self, path: Path) -> None:
        """Wrap ``path``."""
        self.path = path

    def where(self, name: str) -> str:
        """The file's path."""
        return show_path(self.path / name)

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return (self.path / name).is_file()

    def read(self, name: str, most: int) -> bytes:
        """A whole file."""
        data, size = self.head(name, 0, most)
        if size > most:
            raise SpecError(f"{self.where(name)}: {size} bytes; at most {most} are read")
        return data

    def head(self, name: str, start: int, stop: int) -> tuple[bytes, int]:
        """A range of a file, and the file's size."""
        path = self.path / name
        try:
            if not path.is_file():
                raise SpecError(f"{self.where(name)}: this file of the model is missing")
            with path.open("rb") as file:
                file.seek(start)
                return file.read(stop - start), path.stat().st_size
        except OSError as error:
            reason = error.strerror or error
            raise SpecError(f"{self.where(name)}: cannot be read: {reason}") from None

    def lone(self) -> str | None:
        """The one safetensors file of the directory."""
        names = sorted(path.name for path in self.path.glob("*.safetensors"))
        if len(names) > 1:
            raise SpecError(
                f"{show_path(self.path)}: {len(names)} .safetensors files, but no {INDEX} "
                "that says which belong to the model"
            )
        return names[0] if names else None


def read_checkpoint(path: Path, name: str) -> ModelSpec:
    """Read a directory with a ``config.json``, and the headers of safetensors files in it.

    Without such files the weights are those of the config alone.

    Raises:
        SpecError: A file is missing, damaged or contradicts another.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    source = Directory(path)
    tensors = stored_tensors(source)
    if tensors is None:
        return read_config_file(path / "config.json", name)
    config = _config(source)
    spec = read_config(config, name, source.where("config.json"))
    return with_stored(spec, config, tensors)


def read_stored_weights(path: Path) -> StoredWeights | None:
    """The weights alone of the checkpoint in a directory, scales of its KV named; None if none.

    Raises:
        SpecError: A file is missing, damaged or contradicts another.
    """
    source = Directory(path)
    tensors, config = stored_tensors(source), _config(source)
    if tensors is None:
        return None
    return stored_weights(config, tensors, layers=2**20)


def checkpoint_spec(source: Source, name: str) -> ModelSpec:
    """The same from another source of files.

    Raises:
        SpecError: A file is missing, damaged or contradicts another.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    config = _config(source)
    spec = read_config(config, name, source.where("config.json"))
    tensors = stored_tensors(source)
    return spec if tensors is None else with_stored(spec, config, tensors)


def _config(source: Source) -> dict[str, object]:
    """The config, with what a file beside it says of quantised weights where it says nothing."""
    raw = source.read("config.json", MOST_BYTES)
    config = parse_json_object(raw, source.where("config.json"))
    if not config.get("quantization_config") and source.has(_QUANTIZED):
        beside = parse_json_object(source.read(_QUANTIZED, MOST_BYTES), source.where(_QUANTIZED))
        config["quantization_config"] = beside or {"quantization": {}}
    return config


def stored_tensors(source: Source) -> dict[str, StoredTensor] | None:
    """Every tensor of a checkpoint's safetensors files by name; None where it has none.

    Raises:
        SpecError: A file is missing or damaged, or the files and their index disagree.
    """
    if source.has(SINGLE):
        return read_tensors(source, SINGLE)
    if source.has(INDEX):
        return _sharded(source)
    lone = source.lone()
    return None if lone is None else read_tensors(source, lone)


def read_tensors(source: Source, name: str) -> dict[str, StoredTensor]:
    """The tensors of one file, from its header.

    Raises:
        SpecError: It is missing or damaged.
    """
    where = source.where(name)
    prefix, size = source.head(name, 0, PREFIX_BYTES)
    end = PREFIX_BYTES + header_bytes(prefix, size, where)
    header = source.head(name, PREFIX_BYTES, end)[0]
    if len(header) < end - PREFIX_BYTES:
        raise SpecError(f"{where}: truncated: {len(header)} bytes of a header of {end}")
    return parse_header(header, size, where)


def _sharded(source: Source) -> dict[str, StoredTensor]:
    """The tensors that the index names, each from the file that it names."""
    where = source.where(INDEX)
    index = parse_json_object(source.read(INDEX, MOST_INDEX_BYTES), where)
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise SpecError(f"{where}: field 'weight_map' is {show(placed)}, not a map of tensors")
    files: dict[str, list[str]] = {}
    for tensor, file in placed.items():
        if not isinstance(file, str) or not _SHARD.fullmatch(file):
            raise SpecError(
                f"{where}: tensor {show(tensor)} is in {show(file)}, not in a .safetensors file "
                "beside it"
            )
        files.setdefault(file, []).append(tensor)
    if len(files) > _MOST_SHARDS:
        raise SpecError(f"{where}: names {len(files)} files; at most {_MOST_SHARDS} are read")
    found: dict[str, StoredTensor] = {}
    for file, names in sorted(files.items()):
        held = read_tensors(source, file)
        for tensor in names:
            if tensor not in held:
                raise SpecError(
                    f"{where}: tensor {show(tensor)} is not in {file}, where it should be"
                )
            found[tensor] = held[tensor]
    return found


def _quantization(config: Mapping[str, object]) -> Mapping[str, object] | None:
    """What a config says of quantised weights."""
    for values in _parts(config):
        for name in ("quantization_config", "compression_config"):
            if isinstance(stated := values.get(name), Mapping):
                inner = stated.get("quantization")
                return inner if isinstance(inner, Mapping) else stated
    return None


def with_stored(
    spec: ModelSpec,
    config: Mapping[str, object],
    tensors: Mapping[str, StoredTensor],
) -> ModelSpec:
    """A spec from a config with its weights as the tensors give them.

    Weights that a token is multiplied with stay those of the config where it gives them exactly.
    """
    stored = stored_weights(config, tensors, len(spec.layers))
    exact = spec.weights_basis == "exact" and spec.matmul_parameters is not None
    known = stored.parameters is not None
    matmul = spec.matmul_parameters if exact or not known else stored.matmul_parameters
    note = "" if known else spec.weights_note
    if stored.further:
        note = f"{stored.further:,} bytes of it in layers that predict further tokens"
    return replace(
        spec,
        parameters=stored.parameters if known else spec.parameters,
        matmul_parameters=matmul,
        dtype=spec.dtype if _states_dtype(config) else stored.dtype or spec.dtype,
        stored_weight_bytes=stored.bytes,
        weights_unknown="" if known or spec.parameters is not None else stored.unknown,
        weights_basis="stored" if known else spec.weights_basis,
        weights_note=note,
    )


def stored_weights(
    config: Mapping[str, object],
    tensors: Mapping[str, StoredTensor],
    layers: int,
) -> StoredWeights:
    """Count a checkpoint's tensors; ``layers`` is the model's own number of them."""
    parts = _parts(config)
    used = [count for part in parts for name in _EXPERTS_USED if (count := _count(part.get(name)))]
    heights = [count for part in parts if (count := _count(part.get("num_hidden_layers")))]
    ties = [part["tie_word_embeddings"] for part in parts if "tie_word_embeddings" in part]
    return count_stored(
        tensors,
        layers=heights[-1] if heights else layers,
        tied=bool(ties) and ties[0] is True,
        packing=packing_of(_quantization(config)),
        experts_used=used[0] if used else None,
    )


def _parts(config: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The config, and in it that of the decoder where it is a part of a larger model."""
    text = config.get("text_config")
    return [config, text] if isinstance(text, Mapping) else [config]


def _count(value: object) -> int | None:
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**20
    return int(value) if counts and isinstance(value, int) else None


def _states_dtype(config: Mapping[str, object]) -> bool:
    return any(
        part.get(name) in DTYPE_BYTES
        for part in _parts(config)
        for name in ("dtype", "torch_dtype")
    )
