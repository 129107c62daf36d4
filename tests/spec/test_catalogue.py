"""The built-in models against published numbers, and how names resolve."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvhouse.errors import SpecError
from kvhouse.spec import FullAttention, catalogue, load

# Parameters as the model cards and the checkpoints' index files give them.
PUBLISHED_PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "smollm2": 134_515_008,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "gpt2": 124_439_808,
    "phi-2": 2_779_683_840,
    "phi-4": 14_659_507_200,
}


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert load(name).parameters == PUBLISHED_PARAMETERS[name]


def test_names_that_users_rely_on() -> None:
    needed = {"llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-2-70b-mha", "llama-3-8b"}
    assert needed | {"llama-3-70b", "smollm2"} <= set(catalogue())
    assert all(name == name.lower() for name in catalogue())


def test_smollm2() -> None:
    spec = load("smollm2")
    assert spec.layers == (FullAttention(9, 3, 64, 64),) * 30
    assert (spec.hidden_size, spec.vocab_size, spec.max_length) == (576, 49152, 8192)
    assert (spec.name, spec.architecture, spec.dtype) == ("smollm2", "LlamaForCausalLM", "bfloat16")
    assert spec.weight_bytes() == 2 * 134_515_008
    assert spec.weight_bytes("float32") == 4 * 134_515_008


def test_catalogue_models_need_no_heavy_import() -> None:
    code = (
        "import sys; from kvhouse.spec import catalogue, load\n"
        "for name in catalogue(): load(name)\n"
        "heavy = {'torch', 'transformers', 'gguf', 'numpy', 'pydantic', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_and_its_directory_give_the_same(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 10,
        "max_position_embeddings": 16,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    from_file, from_directory = load(file), load(str(tmp_path))
    assert (from_file.name, from_directory.name) == (str(file), str(tmp_path))
    assert from_file.layers == from_directory.layers == (FullAttention(2, 2, 4, 4),) * 2


def test_a_catalogue_name_goes_before_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert load("gpt2").architecture == "GPT2LMHeadModel"
    for path in ("./gpt2", Path("gpt2")):
        with pytest.raises(SpecError, match=r"no config\.json and no \.gguf file"):
            load(path)


@pytest.mark.parametrize(
    ("source", "close"),
    [
        ("Llama-2-7B", "llama-2-7b"),
        ("smolm2", "smollm2"),
        ("qwen3_8b", "qwen3-8b"),
    ],
)
def test_a_name_that_is_nearly_right(source: str, close: str) -> None:
    with pytest.raises(SpecError, match=f"did you mean .*{close}"):
        load(source)


@pytest.mark.parametrize(
    "source", ["", "no/such/thing", "x" * 5000, "a\0b", "two\nlines", "/dev/null/config.json"]
)
def test_nothing_there(source: str) -> None:
    with pytest.raises(SpecError, match="give a catalogue name, a directory") as caught:
        load(source)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x")
    with pytest.raises(SpecError, match=r"neither \.json nor \.gguf"):
        load(file)
