"""Damaged and hostile configs: a clear error or a sane model, never anything else."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.errors import SpecError
from kvhouse.spec import FullAttention, ModelSpec, load
from kvhouse.spec.hf_config import read_config
from kvhouse.spec.json_file import MOST_BYTES

Tiny = Callable[..., dict[str, object]]
Write = Callable[[object], Path]

FAMILIES = ["gpt2", "llama", "mistral", "opt", "phi", "phi3", "qwen2", "qwen3"]


def assert_clear(error: SpecError, where: str) -> None:
    text = str(error)
    assert text.startswith(where)
    assert text.isprintable()
    assert len(text) < len(where) + 300


def assert_sane(spec: ModelSpec) -> None:
    assert 1 <= len(spec.layers) <= 2**12
    layer = spec.layers[0].parts[0]
    assert isinstance(layer, FullAttention)
    sizes = [layer.query_heads, layer.kv_heads, layer.key_dim, layer.value_dim]
    sizes += [spec.hidden_size, spec.vocab_size, spec.max_length]
    assert all(type(size) is int and 1 <= size <= 2**32 for size in sizes)
    assert layer.query_heads % layer.kv_heads == 0
    if spec.weights_unknown:
        assert spec.parameters is spec.matmul_parameters is None
    else:
        assert spec.matmul_parameters > 0
        assert 0 < spec.parameters < 2**80


SIZES = [
    ("llama", name, name)
    for name in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    )
]
SIZES += [("gpt2", name, name) for name in ("n_embd", "n_layer", "n_head", "n_positions")]
SIZES += [("opt", "ffn_dim", "ffn_dim"), ("mistral", "num_key_value_heads", "num_key_value_heads")]
SIZES += [
    ("qwen2", "num_key_value_heads", "num_key_value_heads"),
    ("qwen3", "head_dim", "head_dim"),
]


@pytest.mark.parametrize(("family", "field", "shown"), SIZES)
def test_a_missing_size_is_named(family: str, field: str, shown: str, tiny: Tiny) -> None:
    with pytest.raises(SpecError, match=f"^here: field '{shown}' is missing$"):
        read_config(tiny(family, **{field: ...}), "m", "here")


@pytest.mark.parametrize("value", [0, -1, 2**63, 10**400, True, 4.0, "4096", [], {}, float("nan")])
@pytest.mark.parametrize(("family", "field", "shown"), SIZES)
def test_an_impossible_size_is_named(
    family: str, field: str, shown: str, value: object, tiny: Tiny
) -> None:
    with pytest.raises(
        SpecError, match=f"field '{shown}' is .*not a whole number from 1"
    ) as caught:
        read_config(tiny(family, **{field: value}), "m", "here")
    assert_clear(caught.value, "here: ")


@pytest.mark.parametrize(
    ("family", "changes", "problem"),
    [
        ("llama", {"model_type": ...}, "field 'model_type' is missing"),
        ("llama", {"model_type": 7}, "field 'model_type' is 7, not a string"),
        ("llama", {"architectures": "LlamaForCausalLM"}, "'architectures' is .*list of strings"),
        ("llama", {"architectures": [None]}, r"'architectures' is \[None\], not a list"),
        (
            "llama",
            {"num_key_value_heads": 4},
            "'num_key_value_heads' is 4.* 'num_attention_heads' = 6",
        ),
        ("llama", {"num_key_value_heads": 12}, "is 12, which does not divide"),
        ("llama", {"hidden_size": 25}, "'hidden_size' is 25, not a multiple of 'num_att.* = 6"),
        ("gpt2", {"n_embd": 25}, "'n_embd' is 25, not a multiple of 'n_head' = 6"),
        ("gpt2", {"hidden_size": 48}, "'hidden_size' contradicts field 'n_embd'"),
        ("llama", {"tie_word_embeddings": 1}, "'tie_word_embeddings' is 1, neither true nor false"),
        ("llama", {"attention_bias": "no"}, "'attention_bias' is 'no', neither"),
        ("llama", {"torch_dtype": "float8_e4m3fn"}, "'torch_dtype' is 'float8_e4m3fn', not one of"),
        ("llama", {"dtype": 16}, "'dtype' is 16, not a string"),
        ("llama", {"dtype": "float16", "torch_dtype": "float32"}, "'torch_dtype' contradicts"),
        ("qwen2", {"layer_types": ["full_attention"]}, "'layer_types' names 1 layers.* are 3"),
        ("qwen2", {"layer_types": "full_attention"}, "'layer_types' is .*not a list"),
        ("mistral", {"sliding_window": "4096"}, "'sliding_window' is '4096', not a whole number"),
        ("llama", {"hidden_size": "x\n\x1b[31m" * 50}, "'hidden_size' is "),
    ],
)
def test_other_fields(family: str, changes: dict[str, object], problem: str, tiny: Tiny) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        read_config(tiny(family, **changes), "m", "here")
    assert_clear(caught.value, "here: ")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(0, 100)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["full_attention", "sliding_attention", "float16", "LlamaForCausalLM"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = [
    *("architectures", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings"),
    *("tie_word_embeddings", "dtype", "torch_dtype", "attention_bias", "mlp_bias", "qk_layernorm"),
    *("sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "model_type"),
    *("n_embd", "n_layer", "n_head", "n_positions", "n_inner", "ffn_dim", "word_embed_proj_dim"),
    *("enable_bias", "layer_norm_elementwise_affine", "do_layer_norm_before", "kv_lora_rank"),
    *("quantization_config", "text_config", "is_encoder_decoder", "_remove_final_layer_norm"),
]


@settings(max_examples=300, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    changes=st.dictionaries(st.sampled_from(FIELDS), JSON | st.just(...), min_size=1, max_size=4),
)
def test_any_fields(family: str, changes: dict[str, object], tiny: Tiny) -> None:
    try:
        spec = read_config(tiny(family, **changes), "m", "here")
    except SpecError as error:
        assert_clear(error, "here: ")
    else:
        assert_sane(spec)


def test_a_long_value_is_shown_in_part(tiny: Tiny) -> None:
    """Its members are short, but their escaped names are not."""
    odd = "\x1f\U00018d09\U0001b2fc\U0002ebe1"
    members = [{"": None, odd: -6629499534213120, odd[:3]: 10**20}] * 2
    with pytest.raises(SpecError, match=r"is \[\{'': None, .*\.\.\., not a whole") as caught:
        read_config(tiny("llama", intermediate_size=members), "m", "here")
    assert_clear(caught.value, "here: ")


def test_json_truncated_anywhere(tiny: Tiny, tmp_path: Path) -> None:
    text = json.dumps(tiny("llama", architectures=["LlamaForCausalLM"]), indent=1).encode()
    path = tmp_path / "config.json"
    path.write_bytes(text)
    assert_sane(load(path))
    for length in range(len(text)):
        path.write_bytes(text[:length])
        with pytest.raises(SpecError, match=r"not JSON: .* at line") as caught:
            load(path)
        assert_clear(caught.value, str(path))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_json_with_bytes_changed(
    data: st.DataObject, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = bytearray(json.dumps(tiny("qwen2")).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("changed") / "config.json"
    path.write_bytes(text)
    try:
        spec = load(path)
    except SpecError as error:
        assert_clear(error, str(path))
    else:
        assert_sane(spec)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON"),
        (b"[1, 2]", r"holds \[1, 2\], not an object"),
        (b"null", "holds None, not an object"),
        (b'"' + b"x" * 1000 + b'"', "holds 'x+"),
        (b"\xff\xfe{}", "not UTF-8 text at byte 0"),
        (b'{"model_type": "llama", "model_type": "gpt2"}', "key 'model_type' is stated twice"),
        (b'{"a": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' * 200_000, "nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not a usable JSON file"),
        (b"x" * (MOST_BYTES + 1), f"a config has at most {MOST_BYTES}"),
    ],
)
def test_files_that_hold_no_config(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=problem) as caught:
        load(path)
    assert_clear(caught.value, str(path))


def test_numbers_that_json_lacks_matter_only_where_they_are_read(tiny: Tiny, write: Write) -> None:
    assert_sane(load(write(tiny("llama", time_step_limit=[0.0, float("inf")]))))
    with pytest.raises(SpecError, match="field 'vocab_size' is inf, not a whole number"):
        load(write(tiny("llama", vocab_size=float("inf"))))


def test_a_byte_order_mark_is_no_damage(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny("llama")), encoding="utf-8-sig")
    assert_sane(load(path))


def test_things_that_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(SpecError, match=r"config\.json: not a regular file"):
        load(tmp_path)
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(SpecError, match=r"pipe\.json: not a regular file"):
        load(pipe)


def test_a_file_that_cannot_be_read(
    tiny: Tiny, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tiny("llama"))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SpecError, match=r"config\.json: cannot be read: Permission denied"):
        load(path)
