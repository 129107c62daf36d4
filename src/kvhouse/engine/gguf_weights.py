"""From a GGUF file to a model directory as transformers reads it, kept in the user's cache.

Transformers reads GGUF files itself, but takes half a minute for a small one, at every start. Here
its widened weights are written once and kept.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from kvhouse.engine.quiet import quiet, reading
from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.spec import ModelSpec
from kvhouse.spec.cache import model_cache
from kvhouse.spec.fields import show_path
from kvhouse.spec.gguf_header import Header, read_header
from kvhouse.spec.gguf_reader import parts_of, read_gguf
from kvhouse.spec.hf_config import read_config
from kvhouse.spec.workplace import workplace

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: Part of the cache key: raise it when what is written changes.
_VERSION = 2

#: Architectures whose weights are known to come back as they were written. Transformers reads
#: more of them, but one that it takes wrongly would give noise without a word.
CONVERTED = ("gemma3", "llama", "phi3", "qwen2", "qwen3")

#: RoPE factors, of which no field of a config that transformers makes from GGUF would know.
_ROPE_TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

#: Layers of the one Gemma 3 whose attention scale is not that of its head size; neither the file
#: nor the config that transformers makes of it says so.
_GEMMA_3_OF_ANOTHER_SCALE = 62


def converted(path: Path) -> Path:
    """The directory that a GGUF file was converted to; converts it when there is none yet.

    Raises:
        SpecError: The file is damaged.
        UnsupportedModel: Its weights cannot be mapped.
        KvhouseError: The cache cannot be written.
    """
    status = path.stat()
    identity = f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}\n{_VERSION}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    target = model_cache() / f"{path.stem}-{key}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with workplace(target.parent, ".converting-") as work:
            _convert(path, work)
            _publish(work, target)
    except (OSError, SafetensorError) as error:
        raise KvhouseError(
            f"{path}: cannot keep its converted weights in {target.parent}: {error}; "
            "set XDG_CACHE_HOME to a directory with room"
        ) from error
    return target


def _publish(work: Path, target: Path) -> None:
    """Give a finished directory its name, in one step; another process may have been faster."""
    try:
        work.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _convert(path: Path, directory: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    _refuse_foreign(path, read_header(path))
    place = {"gguf_file": path.name, "local_files_only": True}
    with reading(path):
        config = AutoConfig.from_pretrained(path.parent, **place)
    _refuse_another_model(path, config)
    auto: Any = AutoModelForCausalLM
    with reading(path):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **place)
        model, info = auto.from_pretrained(
            path.parent,
            **place,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            output_loading_info=True,
        )
    # Transformers fills what is missing with random numbers and goes on.
    if info["missing_keys"]:
        raise UnsupportedModel(f"{path}: holds no weight for {min(info['missing_keys'])}")
    with quiet():
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def _refuse_foreign(path: Path, header: Header) -> None:
    """Refuse what transformers would take for another model without a word."""
    where, architecture = show_path(path), str(header.metadata["general.architecture"])
    if architecture not in CONVERTED:
        known = ", ".join(CONVERTED)
        raise UnsupportedModel(
            f"{where}: the engine reads no GGUF weights of architecture {architecture!r}, only of "
            f"{known}"
        )
    if parts_of(header, where) > 1:
        raise UnsupportedModel(f"{where}: the engine reads no GGUF files of split models")
    for table in _ROPE_TABLES:
        if table in header.tensors:
            raise UnsupportedModel(f"{where}: the engine cannot apply its RoPE factors ({table})")
    scaling = header.metadata.get(f"{architecture}.rope.scaling.factor", 1.0)
    if scaling != 1.0:
        raise UnsupportedModel(
            f"{where}: the engine cannot apply its RoPE scaling "
            f"('{architecture}.rope.scaling.factor' is {scaling})"
        )
    layers = header.metadata.get(f"{architecture}.block_count")
    if architecture == "gemma3" and layers == _GEMMA_3_OF_ANOTHER_SCALE:
        raise UnsupportedModel(f"{where}: the engine cannot run the Gemma 3 of {layers} layers")


def _refuse_another_model(path: Path, config: PreTrainedConfig) -> None:
    """Refuse a file of which transformers reads another model than the file's header describes.

    Its config leaves out what it has no field for: experts, windows, biases.
    """
    described = read_gguf(path, path.name)
    understood = read_config(config.to_dict(), path.name, show_path(path))
    for what in ("layers", "parameters", "vocab_size", "experts"):
        if getattr(described, what) != getattr(understood, what):
            raise UnsupportedModel(
                f"{show_path(path)}: the engine cannot run it: transformers reads another model "
                f"from it, with {_shown(understood, what)} and not {_shown(described, what)}"
            )


def _shown(spec: ModelSpec, what: str) -> str:
    value = getattr(spec, what)
    if what == "layers":
        return f"layers {', '.join(dict.fromkeys(map(repr, value)))}"
    return f"{what} {value}"
