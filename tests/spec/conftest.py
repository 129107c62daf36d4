import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

# The sizes of the tiny GGUF files.
HIDDEN, INNER, HEADS, KV_HEADS, VOCAB, LAYERS = 64, 96, 4, 2, 50, 2

_ROTARY: dict[str, object] = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 37,
    "max_position_embeddings": 64,
}
_TINY: dict[str, dict[str, object]] = {
    "llama": _ROTARY,
    "mistral": {**_ROTARY, "sliding_window": None},
    "qwen2": _ROTARY,
    "qwen3": {**_ROTARY, "head_dim": 10},
    "phi3": {**_ROTARY, "pad_token_id": 0},
    "phi": _ROTARY,
    "gpt2": {"n_embd": 24, "n_layer": 3, "n_head": 6, "vocab_size": 37, "n_positions": 64},
    "opt": {
        "hidden_size": 24,
        "ffn_dim": 20,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "vocab_size": 37,
        "max_position_embeddings": 64,
    },
}


@pytest.fixture(scope="session")
def tiny() -> Callable[..., dict[str, object]]:
    """A complete small config of a family, with changes; an ellipsis removes a field."""

    def make(family: str, /, **changes: object) -> dict[str, object]:
        config = {"model_type": family, **_TINY[family], **changes}
        return {key: value for key, value in config.items() if value is not ...}

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    """Write a config to a directory of its own and give the file's path."""

    def to_file(config: object) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    return to_file


def tensors_of(architecture: str, head_dim: int, tied: bool) -> dict[str, tuple[int, ...]]:
    """The tensors of a tiny model under llama.cpp's names, shapes as numpy has them."""
    query, key = HEADS * head_dim, KV_HEADS * head_dim
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "rope_freqs.weight": (head_dim // 2,),
    }
    if not tied:
        found["output.weight"] = (VOCAB, HIDDEN)
    for index in range(LAYERS):
        layer = {
            "attn_norm.weight": (HIDDEN,),
            "ffn_norm.weight": (HIDDEN,),
            "attn_output.weight": (HIDDEN, query),
            "ffn_down.weight": (HIDDEN, INNER),
        }
        if architecture == "phi3":
            layer |= {"attn_qkv.weight": (query + 2 * key, HIDDEN)}
            layer |= {"ffn_up.weight": (2 * INNER, HIDDEN)}
        else:
            layer |= {"ffn_gate.weight": (INNER, HIDDEN), "ffn_up.weight": (INNER, HIDDEN)}
            for part, rows in (("q", query), ("k", key), ("v", key)):
                layer[f"attn_{part}.weight"] = (rows, HIDDEN)
                if architecture == "qwen2":
                    layer[f"attn_{part}.bias"] = (rows,)
        if architecture == "qwen3":
            layer |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
        found |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return found


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny GGUF file with the gguf package's own writer."""

    def write(
        architecture: str = "llama",
        head_dim: int = HIDDEN // HEADS,
        tied: bool = False,
        drop: str | None = None,
        **extra: int | str | bool,
    ) -> Path:
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        sizes: dict[str, int | str | bool] = {
            f"{architecture}.block_count": LAYERS,
            f"{architecture}.embedding_length": HIDDEN,
            f"{architecture}.context_length": 128,
            f"{architecture}.attention.head_count": HEADS,
            f"{architecture}.attention.head_count_kv": KV_HEADS,
        }
        if head_dim != HIDDEN // HEADS:
            sizes |= {f"{architecture}.attention.{v}_length": head_dim for v in ("key", "value")}
        sizes |= {key.replace("__", "."): value for key, value in extra.items()}
        for key, value in sizes.items():
            if key == drop:
                continue
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            else:
                writer.add_uint32(key, value)
        writer.add_token_list([f"t{i}" for i in range(VOCAB)])
        writer.add_array("some.numbers", [1, 2, 3])
        writer.add_float32("some.float", 0.5)
        for name, shape in tensors_of(architecture, head_dim, tied).items():
            if name != drop:
                dtype = np.float16 if len(shape) > 1 else np.float32
                writer.add_tensor(name, np.zeros(shape, dtype))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def split() -> Callable[..., list[Path]]:
    """Split a GGUF file into parts beside it, as llama.cpp does."""

    def cut(path: Path, count: int, names: str = "part-{:05}-of-{:05}.gguf") -> list[Path]:
        """The file's parts as llama.cpp splits it, tensors dealt out in turn."""
        reader = gguf.GGUFReader(path)
        parts = []
        for number in range(count):
            part = path.with_name(names.format(number + 1, count))
            writer = gguf.GGUFWriter(part, "llama")
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", count)
            writer.add_int32("split.tensors.count", len(reader.tensors))
            if number == 0:
                for key, field in reader.fields.items():
                    if key.startswith("llama."):
                        writer.add_uint32(key, int(field.contents()))
            for tensor in reader.tensors[number::count]:
                writer.add_tensor(tensor.name, tensor.data)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            parts.append(part)
        return parts

    return cut
