"""Load a model's weights and tokenizer, from this machine or from the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kvhouse import spec
from kvhouse.engine.adapter import Kind
from kvhouse.engine.hub_files import download, downloaded
from kvhouse.engine.quiet import reading
from kvhouse.engine.sequential import Continuation
from kvhouse.engine.support import require_support
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for the engine.

    Attributes:
        spec: What it keeps per token.
        model: The network, in evaluation mode.
        kind: How the engine runs it.
        tokenizer: None where its directory has none; prompts are then token ids.
        continuation: How it goes on from recurrent states; None where it has none.
        fast: Whether our own forward pass, on a narrow model of its class, computed what the
            class does, or was not taken.
    """

    spec: spec.ModelSpec
    model: PreTrainedModel
    kind: Kind
    tokenizer: PreTrainedTokenizerBase | None
    continuation: Continuation | None = None
    fast: bool = True

    @property
    def dtype(self) -> str:
        """What it computes in, by its usual name."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def threads(self) -> int:
        """Threads that compute."""
        return computing_threads()

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens with which the model ends its answer."""
        ids = self.model.generation_config.eos_token_id
        if ids is None:
            return frozenset()
        return frozenset([ids] if isinstance(ids, int) else ids)


def computing_threads() -> int:
    """Threads that a model is computed with in this process, loaded or not."""
    return torch.get_num_threads()


def describe_model(source: str | Path) -> spec.ModelSpec:
    """What a model keeps, without its weights.

    A model of the hub is described from what was downloaded, if it was, and else from the hub.

    Raises:
        SpecError: Nothing is there, or its description is damaged.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    name = spec.hub_name(source) if isinstance(source, str) else None
    there = downloaded(name) if name else None
    return spec.load(source if there is None else there)


def refuse_unknown_dtype(dtype: str) -> None:
    """Refuse what weights cannot be computed in.

    Raises:
        KvhouseError: No such dtype.
    """
    if dtype not in spec.DTYPE_BYTES:
        raise KvhouseError(f"unknown dtype {dtype!r}: choose one of {', '.join(spec.DTYPE_BYTES)}")


def load_model(source: str | Path, dtype: str = "float32") -> LoadedModel:
    """Load a model.

    Args:
        source: A directory with ``config.json`` and safetensors; a ``.gguf`` file; the name of a
            model whose weights come with an installed package, such as ``smollm2``; or a model of
            the Hugging Face Hub, ``org/name`` or ``org/name/file.gguf``, with ``hf:`` in front if
            need be, whose files are downloaded once.
        dtype: What the weights are widened or narrowed to and computed in.

    Raises:
        SpecError: Nothing is there, or its description is damaged.
        UnsupportedModel: The engine cannot run it.
        KvhouseError: The weights are missing or damaged, or no such dtype.
    """
    refuse_unknown_dtype(dtype)
    described = describe_model(source)
    directory = _directory(source)
    config = _read_config(directory)
    found = require_support(config)
    model = _load_weights(directory, config, getattr(torch, dtype))
    return LoadedModel(
        found.limit(described),
        model,
        found.way,
        _load_tokenizer(directory),
        found.continuation,
        found.fast,
    )


def _directory(source: str | Path) -> Path:
    """The directory with the weights, downloaded or converted from GGUF if need be."""
    path = Path(source)
    if isinstance(source, str):
        name = spec.hub_name(source)
        if name is not None:
            path = download(name)
        elif source in spec.catalogue():
            path = spec.find_gguf(source)
    if path.suffix == ".gguf" and path.is_file():
        from kvhouse.engine.gguf_weights import converted

        return converted(path)
    if not path.is_dir():
        raise KvhouseError(f"{path}: describes a model, but to run it the engine needs its weights")
    if not any(path.glob("*.safetensors")):
        raise KvhouseError(f"{path}: holds no weights: no .safetensors file in this directory")
    return path


def _read_config(directory: Path) -> PreTrainedConfig:
    from transformers import AutoConfig

    with reading(directory):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    return config


def _load_weights(directory: Path, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with reading(directory):
        model, info = auto.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    # Transformers fills what is missing with random numbers and goes on.
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise KvhouseError(f"{directory}: {len(missing)} weights are missing, {missing[0]} first")
    loaded: PreTrainedModel = model.eval()
    return loaded


def _load_tokenizer(directory: Path) -> PreTrainedTokenizerBase | None:
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        return None
    with reading(directory):
        tokenizer = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer
