"""From a GGUF file to a model directory as transformers reads it, kept in the user's cache.

Transformers can read GGUF files itself, but takes half a minute for a small one, at every start.
Here the weights are widened to float32 once and kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError

from kvhouse.engine.quiet import quiet, reading
from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.spec.fields import show_path
from kvhouse.spec.gguf_header import Header, Tensor, read_header
from kvhouse.spec.gguf_reader import parts_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: Part of the cache key: raise it when what is written changes.
_VERSION = 1

#: Architectures whose weights are, but for their order, those of transformers. Others store norms,
#: fused matrices or experts in ways that would be taken wrongly without a word.
_CONVERTED = ("llama", "qwen2", "qwen3", "phi3")
#: Metadata of theirs that, once set, means layers which transformers' config would not know.
_FOREIGN = ("expert_count", "attention.sliding_window")

#: Architectures in which the writers of GGUF reorder the rows of the query and key projections,
#: from the halves that transformers rotates to the pairs that ggml rotates.
_REORDERED = ("llama",)

#: RoPE factors, of which no field of a config that transformers makes from GGUF would know.
_ROPE_TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


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
    target = _cache_root() / f"{path.stem}-{key}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
        try:
            _convert(path, work)
            _publish(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise KvhouseError(
            f"{path}: cannot keep its converted weights in {target.parent}: {error}; "
            "set XDG_CACHE_HOME to a directory with room"
        ) from error
    return target


def _cache_root() -> Path:
    """Where converted models are kept, by the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvhouse" / "models"


def _publish(work: Path, target: Path) -> None:
    """Give a finished directory its name, in one step; another process may have been faster."""
    try:
        work.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _convert(path: Path, directory: Path) -> None:
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer

    header = read_header(path)
    _refuse_foreign(path, header)
    for table in _ROPE_TABLES:
        if table in header.tensors:
            raise UnsupportedModel(f"{path}: the engine cannot apply its RoPE factors ({table})")
    with reading(path):
        place = {"gguf_file": path.name, "local_files_only": True}
        config = AutoConfig.from_pretrained(path.parent, **place)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **place)
        weights = dict(_weights(path, header, config))
    with quiet():
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def _refuse_foreign(path: Path, header: Header) -> None:
    where, architecture = show_path(path), header.metadata["general.architecture"]
    if architecture not in _CONVERTED:
        known = ", ".join(_CONVERTED)
        raise UnsupportedModel(
            f"{where}: the engine reads no GGUF weights of architecture {architecture!r}, only of "
            f"{known}"
        )
    if parts_of(header, where) > 1:
        raise UnsupportedModel(f"{where}: the engine reads no GGUF files of split models")
    longest = header.metadata.get(f"{architecture}.context_length", 0)
    for name in _FOREIGN:
        value = header.metadata.get(f"{architecture}.{name}")
        idle = name.endswith("window") and isinstance(value, int) and value > int(str(longest))
        if value and not idle:
            raise UnsupportedModel(
                f"{where}: the engine cannot run it: field '{architecture}.{name}' is {value}"
            )


def _weights(
    path: Path, header: Header, config: PreTrainedConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight of the model by its name in transformers, in float32."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
    from transformers import AutoModelForCausalLM

    architecture = str(header.metadata["general.architecture"])
    number = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}[architecture]
    names = get_tensor_name_map(number, config.num_hidden_layers)
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        shapes = auto.from_config(config).state_dict()
    for name, like in shapes.items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        tensor = header.tensors.get(stored or "")
        if tensor is None:
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            raise UnsupportedModel(f"{path}: holds no weight for {name}")
        values = _dequantised(path, tensor)
        if values.shape != like.shape:
            raise UnsupportedModel(
                f"{path}: {stored} has shape {values.shape}, {name} needs {tuple(like.shape)}"
            )
        if architecture in _REORDERED and name.split(".")[-2] in ("q_proj", "k_proj"):
            heads = config.num_attention_heads
            values = _halves(values, heads if ".q_proj" in name else config.num_key_value_heads)
        yield name, torch.from_numpy(values)


def _dequantised(path: Path, tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Read a tensor and widen it to float32, in the shape that torch gives it."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quant_shape_to_byte_shape

    kind = GGMLQuantizationType[tensor.type]
    shape = tensor.shape[::-1]
    raw = np.fromfile(path, dtype=np.uint8, count=tensor.bytes, offset=tensor.offset)
    if kind is GGMLQuantizationType.F32:
        return raw.view(np.float32).reshape(shape)
    if kind is GGMLQuantizationType.F16:
        return raw.view(np.float16).reshape(shape).astype(np.float32)
    values = dequantize(raw.reshape(quant_shape_to_byte_shape(shape, kind)), kind)
    return np.ascontiguousarray(values, dtype=np.float32)


def _halves(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], heads: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Reorder each head's rows from pairs (0, 1), (2, 3) ... to first halves, then second ones."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
