"""The built-in models against published numbers, and how names resolve."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvhouse.errors import SpecError
from kvhouse.spec import FullAttention, catalogue, load

# Parameters as the model cards and the checkpoints' safetensors metadata give them; without the
# layers for multi-token prediction.
PUBLISHED_PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "smollm2": 134_515_008,
    "gemma-3-270m": 268_098_176,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "gpt2": 124_439_808,
    "phi-2": 2_779_683_840,
    "phi-4": 14_659_507_200,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "mistral-nemo-12b": 12_247_782_400,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-3.5-moe": 41_873_153_344,
    "olmoe-1b-7b": 6_919_161_856,
    "mamba-2.8b": 2_768_345_600,
    "jamba-v0.1": 51_570_323_328,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "dbrx": 131_596_523_520,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "falcon-7b": 6_921_720_704,
    "gpt-neox-20b": 20_554_567_680,
    "mpt-7b": 6_649_286_656,
    "starcoder2-15b": 15_957_889_024,
    "seed-oss-36b": 36_151_104_512,
    "smollm3-3b": 3_075_098_624,
    "glm-4-9b": 9_400_279_040,
    "glm-4.5-air": 106_852_251_264,
    "kimi-linear-48b-a3b": 49_122_681_728,
    "falcon-40b": 41_303_293_952,
    "lfm2-1.2b": 1_170_340_608,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "internlm3-8b": 8_804_241_408,
    "stablelm-3b": 2_795_443_200,
    "hunyuan-a13b": 80_393_183_232,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "kimi-k2": 1_026_408_232_448,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "llama-3.3-nemotron-super-49b": 49_867_145_216,
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
