"""Quantised checkpoints: what their configs say of the format of each part."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.spec import load
from kvhouse.spec.hf_config import read_config
from kvhouse.spec.quantisation import read_storage

Tiny = Callable[..., dict[str, object]]
Write = Callable[[object], Path]


def names(stated: dict[str, Any], dtype: str = "bfloat16") -> tuple[str, ...]:
    """Formats of mixers, other matrices, experts and the rest."""
    storage = read_storage(stated, "here", dtype)
    assert not isinstance(storage, str), storage
    parts = (storage.mixers, storage.matrices, storage.experts, storage.rest)
    return tuple(f"{one.name}/{one.group}" if one.group else one.name for one in parts)


LINEAR_4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
ALL_ATTENTION = [f"model.layers.{i}.self_attn*" for i in range(20)]

CASES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        ("fp8-block/16384",) * 3,
    ),
    ({"quant_method": "fp8", "activation_scheme": "static"}, ("fp8",) * 3),
    ({"quant_method": "fbgemm_fp8"}, ("fp8",) * 3),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, ("int4/128",) * 3),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("int8",) * 3),
    ({"quant_method": "gptq", "bits": 4, "group_size": 64}, ("int4/64",) * 3),
    ({"quant_method": "mxfp4"}, ("bfloat16", "bfloat16", "mxfp4/32")),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("int8",) * 3),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("nf4/64",) * 3),
    ({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, ("fp8",) * 3),
    ({"quantization": {"quant_algo": "NVFP4", "group_size": 16}}, ("nvfp4/16",) * 3),
    (
        {"quant_algo": "NVFP4", "ignore": ["lm_head", *ALL_ATTENTION]},
        ("bfloat16", "nvfp4/16", "nvfp4/16"),
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": LINEAR_4}},
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
        },
        ("bfloat16", "bfloat16", "int4/32"),
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                }
            },
        },
        ("fp8",) * 3,
    ),
    (
        {
            "quantized_layers": {
                "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                "model.layers.0.mlp.experts.0.up_proj": {"quant_algo": "NVFP4"},
                "model.layers.0.mlp.shared_expert.up_proj": {"quant_algo": "FP8"},
            }
        },
        ("fp8", "fp8", "nvfp4/16"),
    ),
]


@pytest.mark.parametrize(("stated", "parts"), CASES, ids=str)
def test_formats_of_the_parts(stated: dict[str, Any], parts: tuple[str, ...]) -> None:
    assert names(stated) == (*parts, "bfloat16")


def test_scales_of_four_bit_groups() -> None:
    plain = read_storage({"quant_method": "awq", "bits": 4, "group_size": 128}, "x", "float16")
    assert not isinstance(plain, str)
    # AWQ: a float16 scale and a 4-bit zero point for every 128 weights.
    assert plain.matrices.bytes(128 * 1000) == 1000 * (64 + 2) + 1000 // 2
    symmetric = read_storage(CASES[12][0], "x", "float16")
    assert not isinstance(symmetric, str)
    assert symmetric.experts.bytes(32 * 1000) == 1000 * (16 + 2)
    double = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    nested = read_storage({**double, "bnb_4bit_use_double_quant": True}, "x", "float16")
    assert not isinstance(nested, str)
    # QLoRA, section 3: 0.127 bits a weight beside the four.
    assert nested.matrices.bytes(2**20) * 8 / 2**20 - 4 == pytest.approx(0.127, abs=0.001)


@pytest.mark.parametrize(
    "stated",
    [
        {"quant_method": "aqlm"},
        {"quant_method": "modelopt", "quant_algo": "INT2"},
        {"quantized_layers": {"a.b": {"quant_algo": "INT2"}}},
        {"quantized_layers": {"a.b": None}},
        {"config_groups": {"g": {"weights": {"num_bits": 3, "type": "float"}}}},
        {"config_groups": {"g": None}},
        {},
    ],
    ids=str,
)
def test_what_is_not_known_says_so(stated: dict[str, Any]) -> None:
    reason = read_storage(stated, "here", "bfloat16")
    assert isinstance(reason, str)
    assert "quantised" in reason


def test_a_malformed_field_is_an_error() -> None:
    with pytest.raises(SpecError, match="'bits' is 'four'"):
        read_storage({"quant_method": "awq", "bits": "four"}, "here", "bfloat16")


def test_a_quantised_model_is_estimated_and_its_other_formats_are_not(tiny: Tiny) -> None:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    spec = read_config(tiny("llama", quantization_config=quantised), "m", "here")
    plain = read_config(tiny("llama"), "m", "here")
    assert spec.parameters == plain.parameters
    assert spec.weight_bytes_basis() == "estimated"
    assert spec.weight_bytes("float32") == plain.weight_bytes("float32")
    assert spec.weight_bytes_basis("float32") == "exact"
    assert spec.weight_bytes() < spec.weight_bytes("bfloat16")


def test_a_file_beside_the_config_says_it_too(tiny: Tiny, write: Write) -> None:
    path = write(tiny("llama"))
    beside = path.with_name("hf_quant_config.json")
    beside.write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    spec = load(path.parent)
    assert spec.storage is not None
    assert spec.storage.matrices.name == "fp8"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "XYZ"}}))
    with pytest.raises(UnsupportedModel, match="quantised by 'XYZ', which is not known here"):
        load(path.parent).weight_bytes()
