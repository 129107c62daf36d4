"""Checkpoints in safetensors files: weights to the byte, from the headers alone."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvhouse.errors import SpecError
from kvhouse.spec import load
from kvhouse.spec.checkpoint import read_stored_weights
from kvhouse.spec.safetensors_header import DTYPE_BITS

Tiny = Callable[..., dict[str, object]]

# Small models of every make: dense and tied, biases, fused and numbered experts, latents, states.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gemma3_text": {"head_dim": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "deepseek_v3": {
        "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
        "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8, "first_k_dense_replace": 1, "moe_intermediate_size": 16,
    },
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1, "expand": 2},
}  # fmt: skip
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """A tiny random model of a type as transformers saves it, and the model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    def make(model_type: str, shard: str = "1GB") -> tuple[Path, Any]:
        sizes = MODELS[model_type] if model_type == "gpt2" else {**_SIZES, **MODELS[model_type]}
        config = AutoConfig.for_model(model_type, **{"vocab_size": 100, **sizes})
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        path = tmp_path_factory.mktemp(model_type)
        model.save_pretrained(path, max_shard_size=shard)
        return path, model

    return make


@pytest.mark.parametrize("model_type", MODELS)
def test_saved_models(model_type: str, saved: Callable[..., tuple[Path, Any]]) -> None:
    path, model = saved(model_type)
    spec = load(path)
    # Tied ones once; and what is saved beside parameters, such as the bias of a router.
    parameters = {one.data_ptr(): one for one in model.state_dict().values()}.values()
    assert spec.parameters == sum(one.numel() for one in parameters)
    bytes_held = sum(one.numel() * one.element_size() for one in parameters)
    assert spec.stored_weight_bytes == spec.weight_bytes() == bytes_held
    assert spec.weights_basis == "stored"
    assert spec.dtype == "bfloat16"
    # What one token meets: every matrix, of the experts its share, and the output projection.
    experts = getattr(model.config, "n_routed_experts", None) or getattr(
        model.config, "num_local_experts", getattr(model.config, "num_experts", 1)
    )
    met = model.config.vocab_size * model.config.hidden_size
    for name, one in model.named_parameters():
        if one.dim() < 2 or name.endswith("bias") or "embed" in name or "wte" in name:
            continue
        if "wpe" in name or "lm_head" in name or "conv1d" in name:
            continue
        routed = "experts." in name and "shared" not in name
        routed |= "block_sparse_moe" in name and "linear" in name
        met += one.numel() * 2 // experts if routed else one.numel()
    weights = read_stored_weights(path)
    assert weights is not None
    assert weights.matmul_parameters == met


def test_shards_and_their_index(saved: Callable[..., tuple[Path, Any]]) -> None:
    path, model = saved("mixtral", shard="20KB")
    shards = sorted(path.glob("model-*.safetensors"))
    assert len(shards) > 3
    whole, _ = saved("mixtral")
    assert load(path).stored_weight_bytes == load(whole).stored_weight_bytes
    assert load(path).parameters == load(whole).parameters == model.num_parameters()
    shards[1].unlink()
    with pytest.raises(SpecError, match=rf"{shards[1].name}: this file of the model is missing"):
        load(path)


def test_a_tied_copy_counts_once(tmp_path: Path, tiny: Tiny) -> None:
    config = tiny("llama", tie_word_embeddings=True, torch_dtype="float16")
    (tmp_path / "config.json").write_text(json.dumps(config))
    table = np.zeros((37, 24), np.float16)
    tensors = {"model.embed_tokens.weight": table, "lm_head.weight": table.copy()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert load(tmp_path).stored_weight_bytes == 2 * 37 * 24
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    assert load(tmp_path).stored_weight_bytes == 2 * 2 * 37 * 24


def write(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]], size: int = 0) -> Path:
    """A safetensors file of the given dtypes and shapes, whose data is a hole."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = at + int(np.prod(shape)) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(size or 8 + len(raw) + at)
    return path


# One linear layer of 64 by 128 weights as each tool stores it, and what lies beside it.
LINEAR = 64 * 128
QUANTISED: dict[str, tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...]]], int]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32},
        {
            "qweight": ("I32", (16, 64)), "qzeros": ("I32", (4, 8)), "scales": ("F16", (4, 64)),
            "g_idx": ("I32", (128,)),
        },
        LINEAR // 2 + 4 * 8 * 4 + 4 * 64 * 2 + 128 * 4,
    ),
    "gptq 3 bits": (
        {"quant_method": "gptq", "bits": 3},
        {"qweight": ("I32", (12, 64)), "scales": ("F16", (1, 64))},
        LINEAR * 3 // 8 + 128,
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4},
        {"qweight": ("I32", (128, 8)), "qzeros": ("I32", (1, 8)), "scales": ("F16", (1, 64))},
        LINEAR // 2 + 32 + 128,
    ),
    "fp8 in blocks": (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"weight": ("F8_E4M3", (64, 128)), "weight_scale_inv": ("F32", (1, 1))},
        LINEAR + 4,
    ),
    "compressed-tensors int4": (
        {"quant_method": "compressed-tensors",
         "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
        {"weight_packed": ("I32", (64, 16)), "weight_scale": ("BF16", (64, 4)),
         "weight_shape": ("I64", (2,))},
        LINEAR // 2 + 64 * 4 * 2 + 16,
    ),
    "compressed-tensors nvfp4": (
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
         "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
        {"weight_packed": ("U8", (64, 64)), "weight_scale": ("F8_E4M3", (64, 8)),
         "weight_global_scale": ("F32", (1,)), "input_global_scale": ("F32", (1,))},
        LINEAR // 2 + 64 * 8 + 8,
    ),
    "compressed-tensors fp8": (
        {"quant_method": "compressed-tensors",
         "config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
        {"weight": ("F8_E4M3", (64, 128)), "weight_scale": ("BF16", (64, 1))},
        LINEAR + 128,
    ),
    "modelopt nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"weight": ("U8", (64, 64)), "weight_scale": ("F8_E4M3", (64, 8)),
         "weight_scale_2": ("F32", ()), "input_scale": ("F32", ())},
        LINEAR // 2 + 64 * 8 + 8,
    ),
    "modelopt mixed": (
        {"quant_algo": "MIXED_PRECISION"},
        {"weight": ("F8_E4M3", (64, 128)), "weight_scale": ("F32", ()), "input_scale": ("F32", ())},
        LINEAR + 8,
    ),
    "mxfp4": (
        {"quant_method": "mxfp4"},
        {"proj_blocks": ("U8", (64, 4, 16)), "proj_scales": ("U8", (64, 4))},
        LINEAR // 2 + 64 * 4,
    ),
    "bitsandbytes nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"weight": ("U8", (LINEAR // 2, 1)), "weight.absmax": ("U8", (128,)),
         "weight.quant_map": ("F32", (16,)), "weight.nested_absmax": ("F32", (1,)),
         "weight.nested_quant_map": ("F32", (256,)),
         "weight.quant_state.bitsandbytes__nf4": ("U8", (80,))},
        LINEAR // 2 + 128 + 64 + 4 + 1024 + 80,
    ),
    "bitsandbytes int8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"weight": ("I8", (64, 128)), "SCB": ("F32", (64,)), "weight_format": ("U8", ())},
        LINEAR + 256 + 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", QUANTISED)
def test_quantised_checkpoints(layout: str, tmp_path: Path, tiny: Tiny) -> None:
    quantization, parts, stored = QUANTISED[layout]
    config = tiny("llama", torch_dtype="bfloat16", quantization_config=quantization)
    (tmp_path / "config.json").write_text(json.dumps(config))
    place = "model.layers.0.mlp.up_proj"
    tensors = {f"{place}.{part}": what for part, what in parts.items()}
    tensors |= {
        "model.embed_tokens.weight": ("BF16", (37, 24)),
        "model.norm.weight": ("BF16", (24,)),
        "model.layers.0.self_attn.k_scale": ("F32", (1,)),
        "model.layers.0.self_attn.v_scale": ("F32", (1,)),
    }
    write(tmp_path / "model.safetensors", tensors)
    spec = load(tmp_path)
    assert spec.stored_weight_bytes == stored + 2 * (37 * 24 + 24) + 8
    assert spec.parameters == LINEAR + 37 * 24 + 24
    weights = read_stored_weights(tmp_path)
    assert weights is not None
    assert weights.matmul_parameters == LINEAR + 37 * 24
    assert weights.kv_scales == (
        "model.layers.0.self_attn.k_scale",
        "model.layers.0.self_attn.v_scale",
    )
    assert sum(weights.by_dtype.values()) == weights.bytes == spec.stored_weight_bytes


@pytest.mark.parametrize(
    ("quantization", "reason"),
    [
        ({"quant_method": "hqq"}, "quantisation method 'hqq' is not known"),
        ({"quant_method": "gptq"}, "of quantisation 'gptq' the bits are None"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4}},
                    "b": {"weights": {"num_bits": 8}},
                },
            },
            r"of quantisation 'compressed-tensors' the bits are \[4, 8\]",
        ),
        ({"quant_method": "fp8"}, r"how tensor 'model\.layers\.0\.\w+\.\w+\.W_q' is packed"),
    ],
)
def test_a_layout_that_is_not_known_has_bytes_but_no_count(
    quantization: dict[str, Any], reason: str, tmp_path: Path, tiny: Tiny
) -> None:
    config = tiny("llama", torch_dtype="bfloat16", quantization_config=quantization)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {
        "model.embed_tokens.weight": ("BF16", (37, 24)),
        "model.layers.0.mlp.up_proj.W_q": ("U8", (512, 256)),
    }
    write(tmp_path / "model.safetensors", tensors)
    assert load(tmp_path).stored_weight_bytes == 2 * 37 * 24 + 512 * 256
    weights = read_stored_weights(tmp_path)
    assert weights is not None
    assert weights.parameters is None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(weights.unknown)


def test_a_file_beside_the_config_says_how_weights_are_packed(tmp_path: Path, tiny: Tiny) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny("llama", torch_dtype="bfloat16")))
    beside = {"producer": {}, "quantization": {"quant_algo": "NVFP4"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    tensors = {
        "model.embed_tokens.weight": ("BF16", (37, 24)),
        "model.layers.0.mlp.up_proj.weight": ("U8", (64, 64)),
    }
    write(tmp_path / "model.safetensors", tensors)
    assert load(tmp_path).parameters == 37 * 24 + 64 * 128


def test_parts_that_are_not_the_decoder(tmp_path: Path, tiny: Tiny) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny("llama", torch_dtype="bfloat16")))
    tensors = {
        "model.embed_tokens.weight": ("BF16", (37, 24)),
        "lm_head.weight": ("BF16", (37, 24)),
        "model.layers.2.mlp.up_proj.weight": ("BF16", (20, 24)),
        "model.layers.3.mlp.up_proj.weight": ("BF16", (20, 24)),  # one more than there are
        "model.visual.blocks.0.attn.qkv.weight": ("BF16", (8, 8)),
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (4,)),
        "h.0.attn.bias": ("F32", (1, 1, 8, 8)),
        "position_ids": ("I64", (1, 64)),
    }
    write(tmp_path / "model.safetensors", tensors)
    spec, weights = load(tmp_path), read_stored_weights(tmp_path)
    assert weights is not None
    assert weights.matmul_parameters == 37 * 24 + 20 * 24
    assert weights.parameters == 2 * 37 * 24 + 2 * 20 * 24 + 64
    assert weights.further == 2 * 20 * 24
    assert spec.stored_weight_bytes == 2 * weights.parameters + 16 + 256 + 512
    assert spec.weights_note == "960 bytes of it in layers that predict further tokens"


def test_files_without_the_usual_names(tmp_path: Path, tiny: Tiny) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny("llama", torch_dtype="bfloat16")))
    tensors = {"model.embed_tokens.weight": ("BF16", (37, 24))}
    write(tmp_path / "consolidated.safetensors", tensors)
    assert load(tmp_path).stored_weight_bytes == 2 * 37 * 24
    write(tmp_path / "other.safetensors", tensors)
    with pytest.raises(SpecError, match=r"2 \.safetensors files, but no model\.safetensors\.index"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({}, "field 'weight_map' is None, not a map of tensors"),
        ({"weight_map": {}}, r"field 'weight_map' is \{\}"),
        ({"weight_map": {"a": "../../m.safetensors"}}, "not in a .safetensors file beside it"),
        ({"weight_map": {"a": 7}}, "tensor 'a' is in 7, not in a"),
        ({"weight_map": {"a": "m.safetensors"}}, "tensor 'a' is not in m.safetensors, where it"),
        (
            {"weight_map": {"b": "n.safetensors"}},
            "n.safetensors: this file of the model is missing",
        ),
        ({"weight_map": {str(i): f"{i}.safetensors" for i in range(5000)}}, "names 5000 files"),
    ],
)
def test_an_index_that_is_wrong(index: object, reason: str, tmp_path: Path, tiny: Tiny) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny("llama")))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    write(tmp_path / "m.safetensors", {"b": ("F32", (1,))})
    with pytest.raises(SpecError, match=reason):
        load(tmp_path)
