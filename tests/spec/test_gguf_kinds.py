"""GGUF headers of every kind of model against the same model's Hugging Face config.

The metadata is what llama.cpp's own converter writes for each config; the tensors are the few that
the reader checks, in files whose data is a hole.
"""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.formats import get_format
from kvhouse.spec import load
from kvhouse.spec.ggml_types import TYPES
from kvhouse.spec.gguf_metadata import architectures
from kvhouse.spec.hf_config import read_config
from kvhouse.spec.layers import FullAttention, LatentAttention, SlidingAttention, State, WithoutKV
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.resolve import read_catalogue

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("gguf_metadata.json").read_text(encoding="utf-8")
)
CASES = [name for name in RECORDED if name != "source"]
Tensors = dict[str, tuple[int, ...]]


def config_of(name: str) -> dict[str, Any]:
    """The config from which the metadata was made: the catalogue's, or a class's own example."""
    model_type = name.removeprefix("default:")
    if model_type == name:
        return dict(read_catalogue()[name]["config"])
    from transformers import CONFIG_MAPPING

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = CONFIG_MAPPING[model_type]().to_dict()
    changes = RECORDED[name].get("changes", {})
    return {**json.loads(json.dumps(config, default=str)), "model_type": model_type, **changes}


def write_header(
    path: Path, metadata: dict[str, Any], tensors: Tensors, types: dict[str, str] | None = None
) -> Path:
    """Write a header with the gguf package; the tensors' data is a hole in the file.

    Shapes are as numpy has them; ``types`` are by default F16.
    """
    architecture = metadata["general.architecture"]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    padded = 0
    for name, shape in tensors.items():
        kind = gguf.GGMLQuantizationType[(types or {}).get(name, "F16")]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        stored = int(np.prod(shape)) // elements * size
        writer.add_tensor_info(name, shape, np.dtype(np.float16), stored, kind)
        padded += -(-stored // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + padded + 64)
    return path


def tensors_for(spec: ModelSpec, rows: int = 64) -> Tensors:
    """The matrices that the reader checks, from what the config's reader found."""
    hidden = spec.hidden_size
    found: Tensors = {"token_embd.weight": (rows, hidden)}
    for index, layer in enumerate(spec.layers):
        found[f"blk.{index}.attn_norm.weight"] = (hidden,)
        for part in layer.parts:
            if isinstance(part, FullAttention):
                found[f"blk.{index}.attn_k.weight"] = (part.kv_heads * part.key_dim, hidden)
                found[f"blk.{index}.attn_v.weight"] = (part.kv_heads * part.value_dim, hidden)
            elif isinstance(part, LatentAttention):
                found[f"blk.{index}.attn_kv_a_mqa.weight"] = (part.rank + part.rope_dim, hidden)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_layers_are_those_of_the_config(name: str, tmp_path: Path) -> None:
    wanted = read_config(config_of(name), name, name)
    metadata = RECORDED[name]["metadata"]
    architecture = metadata["general.architecture"]
    tensors = tensors_for(wanted)
    further = metadata.get(f"{architecture}.nextn_predict_layers", 0)
    attends = next((k.split(".")[1] for k in tensors if ".attn_k" in k), "none")
    same = [key for key in tensors if key.startswith(f"blk.{attends}.")]
    for index in range(len(wanted.layers), len(wanted.layers) + further):
        tensors |= {key.replace(attends, str(index), 1): tensors[key] for key in same}
    spec = load(write_header(tmp_path / "m.gguf", metadata, tensors))
    assert spec.layers == wanted.layers
    assert spec.hidden_size == wanted.hidden_size
    assert spec.architecture == architectures()[architecture].get(
        "experts_class" if metadata.get(f"{architecture}.expert_count") else "", spec.architecture
    )
    assert len(spec.mtp_layers) == further
    bf16 = get_format("bf16")
    for tokens in (1, 100, 4096):
        ours = spec.kv_bytes(tokens, bf16, dtype="bfloat16")
        assert ours == wanted.kv_bytes(tokens, bf16, dtype="bfloat16")


def test_a_published_file_that_mixes_tensor_types(tmp_path: Path) -> None:
    recorded = json.loads(Path(__file__).with_name("gemma_3_270m.json").read_text("utf-8"))
    types = {name: kind for name, (kind, _) in recorded["tensors"].items()}
    shapes = {name: tuple(shape[::-1]) for name, (_, shape) in recorded["tensors"].items()}
    path = write_header(tmp_path / "m.gguf", recorded["metadata"], shapes, types)
    spec = load(path)
    # The tensors fill the published file from the end of its header to its last byte.
    assert spec.stored_weight_bytes == recorded["data_end"] - recorded["data_start"]
    # The count that the checkpoint's page on the hub gives.
    assert spec.parameters == 268_098_176
    assert kinds(spec) == (["sliding window"] * 5 + ["full attention"]) * 3
    assert spec.layers[0] == SlidingAttention(4, 1, 256, 256, 512)


def test_the_cases_are_of_many_architectures() -> None:
    found = {RECORDED[name]["metadata"]["general.architecture"] for name in CASES}
    assert len(found) >= 65
    assert found <= architectures().keys()


def test_every_architecture_of_the_gguf_package_is_read_or_refused_with_a_reason() -> None:
    for name in gguf.MODEL_ARCH_NAMES.values():
        entry = architectures()[name]
        assert entry.get("class") or entry["refused"]


@pytest.mark.parametrize("name", [n for n, e in architectures().items() if "refused" in e])
def test_refused_by_name(name: str, tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", {"general.architecture": name}, {"t": (1,)})
    with pytest.raises(UnsupportedModel, match=f"architecture '{name}' is not supported: "):
        load(path)


def test_tensor_types_are_those_of_the_gguf_package() -> None:
    theirs = {int(k): (k.name, *sizes) for k, sizes in gguf.GGML_QUANT_SIZES.items()}
    # Of Q8_1 older releases of the package say 40 bytes; its struct in ggml-common.h has 36.
    assert {k: v for k, v in theirs.items() if k != 9} == {k: TYPES[k] for k in theirs if k != 9}


SMALL: dict[str, Any] = {
    "block_count": 4,
    "embedding_length": 64,
    "context_length": 1024,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., ModelSpec]:
    """Load a small model of an architecture with the given metadata; 0 heads have no matrices."""

    def read(architecture: str, extra: Tensors | None = None, /, **changes: Any) -> ModelSpec:
        values = {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
        metadata = {f"{architecture}.{k}": v for k, v in values.items() if v is not None}
        tensors: Tensors = {"token_embd.weight": (50, 64)}
        kv = values["attention.head_count_kv"]
        for index in range(values["block_count"]):
            tensors[f"blk.{index}.attn_norm.weight"] = (64,)
            rows = 16 * (kv[index] if isinstance(kv, list) and index < len(kv) else 2 if kv else 0)
            if rows:
                for part in ("k", "v"):
                    tensors[f"blk.{index}.attn_{part}.weight"] = (rows, 64)
        metadata["general.architecture"] = architecture
        path = write_header(tmp_path / "small.gguf", metadata, tensors | (extra or {}))
        return load(path)

    return read


def kinds(spec: ModelSpec) -> list[str]:
    return [layer.kind for layer in spec.layers]


def test_patterns_that_are_only_in_llama_cpp(small: Callable[..., ModelSpec]) -> None:
    full, window, chunk = "full attention", "sliding window", "chunked attention"
    slides = {"attention__sliding_window": 128}
    assert kinds(small("gemma2", **slides)) == [window, full, window, full]
    assert kinds(small("gpt-oss", **slides)) == [window, full, window, full]
    assert kinds(small("cohere2", **slides)) == [window] * 3 + [full]
    assert kinds(small("smallthinker", **slides)) == [full] + [window] * 3
    assert kinds(small("gemma3", **slides)) == [window] * 4
    assert kinds(small("gemma3")) == [full] * 4
    assert kinds(small("olmo2")) == [full] * 4
    assert kinds(small("llama4")) == [chunk] * 3 + [full]
    assert kinds(small("llama4", attention__sliding_window=0)) == [full] * 4
    # A window that is not stated has llama.cpp's length, unless no text is longer.
    assert small("exaone-moe").layers[0].kept_tokens(1000) == 128
    assert kinds(small("gemma2")) == [full] * 4
    assert kinds(small("gemma2", context_length=8192)) == [window, full, window, full]


def test_a_period_in_the_metadata_goes_before_that_of_the_architecture(
    small: Callable[..., ModelSpec],
) -> None:
    period = {"attention__sliding_window": 128, "attention__sliding_window_pattern": 2}
    assert kinds(small("gemma3", **period)) == ["sliding window", "full attention"] * 2
    assert kinds(small("llama", **period)) == ["sliding window", "full attention"] * 2


def test_layers_that_keep_nothing(small: Callable[..., ModelSpec]) -> None:
    spec = small("deci", attention__head_count=[4, 0, 4, 4], attention__head_count_kv=[2, 0, 0, 2])
    plain = FullAttention(4, 2, 16, 16)
    assert spec.layers == (plain, WithoutKV(), WithoutKV(), plain)


def test_rwkv(small: Callable[..., ModelSpec]) -> None:
    spec = small("rwkv7", wkv__head_size=16, attention__head_count=0, attention__head_count_kv=0)
    # Two last tokens in the model's dtype and 4 heads of 16 by 16 in float32, in each of 4 layers.
    assert spec.kv_bytes(1000, get_format("bf16")) == 4 * (2 * 64 * 2 + 4 * 16 * 16 * 4)
    assert all(isinstance(layer, State) for layer in spec.layers)


def test_older_files_of_latent_models_state_unfolded_keys(
    small: Callable[..., ModelSpec],
) -> None:
    extra = {f"blk.{index}.attn_kv_a_mqa.weight": (40, 64) for index in range(4)}
    sizes = {"attention__kv_lora_rank": 32, "rope__dimension_count": 8}
    old = small("deepseek2", extra, attention__key_length=24, **sizes)
    new = small("deepseek2", extra, attention__key_length=40, attention__key_length_mla=24, **sizes)
    assert old.layers == new.layers == (LatentAttention(4, 32, 8),) * 4
    with pytest.raises(SpecError, match=r"40 rows \(attn_kv_a_mqa\); .* 36 rows"):
        small("deepseek2", extra, attention__kv_lora_rank=28, rope__dimension_count=8)


def test_loops_and_draft_layers(small: Callable[..., ModelSpec]) -> None:
    assert len(small("nanbeige", num_loops=3).layers) == 12
    spec = small("glm4moe", nextn_predict_layers=1)
    assert (len(spec.layers), len(spec.mtp_layers)) == (3, 1)
    with pytest.raises(SpecError, match=r"'glm4moe\.nextn_predict_layers' is 4, but there"):
        small("glm4moe", nextn_predict_layers=4)


def test_experts(small: Callable[..., ModelSpec]) -> None:
    experts: Tensors = {}
    for index in range(4):
        experts |= {f"blk.{index}.ffn_{part}_exps.weight": (8, 32, 64) for part in ("gate", "up")}
        experts |= {
            f"blk.{index}.ffn_down_exps.weight": (8, 64, 32),
            f"blk.{index}.ffn_gate_inp.weight": (8, 64),
        }
    spec = small("llama", experts, expert_count=8, expert_used_count=2)
    assert spec.architecture == "MixtralForCausalLM"
    each, attention, router, table, norms = 3 * 32 * 64, 2 * 32 * 64, 8 * 64, 50 * 64, 4 * 64
    assert spec.parameters == table + norms + 4 * (8 * each + attention + router)
    assert spec.matmul_parameters == table + 4 * (2 * each + attention + router)
    assert spec.stored_weight_bytes == 2 * spec.parameters
    assert [(e.layers, e.experts, e.active, e.parameters_each) for e in spec.experts] == [
        (4, 8, 2, each)
    ]
    with pytest.raises(SpecError, match="a token is sent to 9 experts"):
        small("llama", experts, expert_count=8, expert_used_count=9)


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("gemma3", {"attention__head_count_kv": [2, 2]}, "not a whole number for each of 4"),
        ("gemma3", {"attention__sliding_window": 2**31, "attention__sliding_window_pattern": "x"},
         "is 'x', not a whole number"),
        ("gemma4", {"attention__shared_kv_layers": 4}, "is 4, but there are 4 layers"),
        ("gemma4", {"attention__sliding_window": 128}, "which do is not stated"),
        ("jamba", {"attention__head_count_kv": [0, 0, 0, 0]}, "'jamba.ssm.inner_size' is missing"),
        ("mamba", {"ssm__inner_size": 2**31}, "not a whole number from 1 to"),
        ("deepseek4", {}, "compress_ratios"),
        ("llama", {"attention__head_count": 0, "attention__head_count_kv": 0}, "is 0; the hidden"),
        ("llama", {"attention__head_count": None}, "'llama.attention.head_count' is missing"),
        ("kimi-linear", {"kda__head_dim": 8, "attention__head_count": 0}, "kimi-linear.attention"),
    ],
)  # fmt: skip
def test_impossible_metadata(
    architecture: str, changes: dict[str, Any], reason: str, small: Callable[..., ModelSpec]
) -> None:
    with pytest.raises(SpecError, match=reason):
        small(architecture, **changes)
