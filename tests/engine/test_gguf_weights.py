"""GGUF: a model written as llama.cpp writes it comes back weight for weight."""

from __future__ import annotations

import string
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3TextConfig, Qwen3Config

from kvhouse import spec
from kvhouse.engine import Engine, EngineConfig, gguf_weights
from kvhouse.engine.load import load_model
from kvhouse.errors import KvhouseError, UnsupportedModel

LETTERS = string.ascii_letters + string.digits
SIZES = {
    "context_length": 256,
    "embedding_length": 48,
    "block_count": 3,
    "feed_forward_length": 80,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
}
#: For each architecture the model that is written, and the fields that it has beside ``SIZES``.
WRITTEN = {
    "llama": ("llama-gqa", {"rope.dimension_count": 8}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("", {"attention.key_length": 128, "attention.value_length": 128}),
    "phi3": ("phi3", {"rope.dimension_count": 8}),
    "gemma3": (
        "",
        {
            "block_count": 6,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.sliding_window": 20,
            "rope.freq_base": 1e6,
        },
    ),
}


OWN_SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
#: Models that the other tests have not, or not with sizes that transformers reads from GGUF.
OWN = {
    # Five layers with a window and one without.
    "gemma3": Gemma3TextConfig(**OWN_SIZES, num_hidden_layers=6, head_dim=16, sliding_window=20),
    "qwen3": Qwen3Config(**OWN_SIZES, num_hidden_layers=3, head_dim=128),
}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row r of a head's first half goes to 2r, of its second half to 2r + 1."""
    out, half = np.empty_like(weight), weight.shape[0] // heads // 2
    for head in range(heads):
        start = 2 * half * head
        for r in range(half):
            out[start + 2 * r] = weight[start + r]
            out[start + 2 * r + 1] = weight[start + half + r]
    return out


def as_stored(architecture: str, name: str, weight: torch.Tensor) -> np.ndarray:
    """A weight as llama.cpp's converter writes it."""
    values = weight.numpy()
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return values + 1
    if architecture != "llama" or name.split(".")[-2] not in ("q_proj", "k_proj"):
        return values
    return interleaved(values, 6 if ".q_proj" in name else 2)


def write_gguf(
    path,
    weights: dict[str, torch.Tensor],
    architecture="llama",
    *,
    fields=None,
    merge="t a",
    **extra,
) -> None:
    """Write a tiny model; ``fields`` change or add metadata, ``extra`` adds tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (SIZES | WRITTEN[architecture][1] | (fields or {})).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    writer.add_vocab_size(97)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*LETTERS, *(f"t{letter}" for letter in LETTERS[:35])])
    writer.add_token_types([1] * 97)
    writer.add_token_merges([merge])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    number = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, 6)
    for name, weight in weights.items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(stored, as_stored(architecture, name, weight))
    for name, size in extra.items():
        writer.add_tensor(name.replace("__", "."), np.ones(size, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvhouse" / "models"


@pytest.fixture
def weights(tiny_directory) -> dict[str, torch.Tensor]:
    return load_file(tiny_directory("llama-gqa") / "model.safetensors")


@pytest.fixture
def weights_of(tiny_directory, tmp_path):
    """The weights of the model that is written for an architecture."""

    def build(architecture: str) -> dict[str, torch.Tensor]:
        if architecture not in OWN:
            return load_file(tiny_directory(WRITTEN[architecture][0]) / "model.safetensors")
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(OWN[architecture])
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(tmp_path / "own")
        return load_file(tmp_path / "own" / "model.safetensors")

    return build


@pytest.mark.parametrize("architecture", WRITTEN)
def test_weights_come_back(tmp_path, cache, weights_of, architecture):
    weights = weights_of(architecture)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights, architecture)
    directory = gguf_weights.converted(path)
    assert list(cache.iterdir()) == [directory]
    got = load_file(directory / "model.safetensors")
    assert set(got) == set(weights)
    for name, weight in weights.items():
        # A norm of Gemma is stored as 1 more, which rounds its last bits off.
        torch.testing.assert_close(
            got[name], weight, rtol=0, atol=3e-7 * (architecture == "gemma3")
        )
    kept, written = (spec.load(one) for one in (directory, path))
    assert (kept.layers, kept.parameters) == (written.layers, written.parameters)


@pytest.mark.usefixtures("cache")
def test_the_whole_model_is_loaded(tmp_path, weights):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights)
    loaded = load_model(path)
    assert loaded.tokenizer is not None
    assert loaded.eos_token_ids == {2}
    assert torch.equal(loaded.model.model.norm.weight, weights["model.norm.weight"])


@pytest.mark.usefixtures("cache")
def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path, weights, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights)
    first = gguf_weights.converted(path)
    with monkeypatch.context() as patched:
        patched.delattr(gguf_weights, "_convert")
        assert gguf_weights.converted(path) == first
    weights["model.norm.weight"] += 1
    path.unlink()
    write_gguf(path, weights)
    second = gguf_weights.converted(path)
    assert second != first
    stored = load_file(second / "model.safetensors")
    assert torch.equal(stored["model.norm.weight"], weights["model.norm.weight"])


def test_an_interrupted_conversion_leaves_nothing(tmp_path, cache, weights, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights)

    def interrupt(_, directory):
        (directory / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gguf_weights, "_convert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            gguf_weights.converted(path)
    assert list(cache.iterdir()) == []


def test_what_a_killed_conversion_left_is_removed(tmp_path, cache, weights):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights)
    left = cache / ".converting-left"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert list(cache.iterdir()) == [left]
    directory = gguf_weights.converted(path)
    assert list(cache.iterdir()) == [directory]


def test_another_process_may_be_faster(tmp_path, cache, weights, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights)
    target = gguf_weights.converted(path)
    convert = gguf_weights._convert
    moved = target.rename(tmp_path / "theirs")

    def slow(source, directory):
        convert(source, directory)
        moved.rename(target)

    monkeypatch.setattr(gguf_weights, "_convert", slow)
    assert gguf_weights.converted(path) == target
    assert list(cache.iterdir()) == [target]


def test_a_cache_that_cannot_be_written(tmp_path, weights, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights)
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(KvhouseError, match="set XDG_CACHE_HOME to a directory with room"):
        gguf_weights.converted(path)


def test_rope_factors_are_refused(tmp_path, cache, weights):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights, rope_freqs__weight=4)
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        gguf_weights.converted(path)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("architecture", "fields", "extra", "reason"),
    [
        ("llama", {"rope.scaling.factor": 4.0}, {}, "'llama.rope.scaling.factor' is 4.0"),
        ("llama", {}, {"blk__0__attn_q__bias": 48}, "another model from it, with parameters"),
        ("phi3", {"attention.sliding_window": 32}, {}, "another model from it, with layers Full"),
        ("gemma3", {"block_count": 62}, {}, "the Gemma 3 of 62 layers"),
    ],
)
def test_files_that_would_be_taken_wrongly(
    tmp_path, cache, weights_of, architecture, fields, extra, reason
):
    weights = weights_of(architecture)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights, architecture, fields=fields, **extra)
    with pytest.raises(UnsupportedModel, match=reason):
        gguf_weights.converted(path)
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("cache")
def test_a_head_size_that_transformers_does_not_read(tmp_path, tiny_directory):
    weights = load_file(tiny_directory("qwen3") / "model.safetensors")
    path = tmp_path / "tiny.gguf"
    write_gguf(
        path, weights, "qwen3", fields={"attention.key_length": 12, "attention.value_length": 12}
    )
    with pytest.raises(UnsupportedModel, match=r"key_dim=128.* and not layers Full.*key_dim=12"):
        gguf_weights.converted(path)


@pytest.mark.usefixtures("cache")
def test_a_window_that_is_never_full_is_none(tmp_path, tiny_directory):
    weights = load_file(tiny_directory("phi3") / "model.safetensors")
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights, "phi3", fields={"attention.sliding_window": 300})
    assert gguf_weights.converted(path).is_dir()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("architecture", "extra", "reason"),
    [
        (
            "gemma",
            {},
            "no GGUF weights of architecture 'gemma', only of gemma3, llama, phi3, qwen2",
        ),
        ("llama", {"split.count": 2}, "no GGUF files of split models"),
    ],
)
def test_files_that_are_not_read(tmp_path, architecture, extra, reason):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in extra.items():
        writer.add_uint32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=reason):
        gguf_weights.converted(path)


@pytest.mark.usefixtures("cache")
def test_a_weight_under_another_name(tmp_path, weights):
    path = tmp_path / "tiny.gguf"
    del weights["model.layers.1.mlp.up_proj.weight"]
    write_gguf(path, weights, blk__1__other__weight=80 * 48)
    with pytest.raises(UnsupportedModel, match=r"no weight for model\.layers\.1\.mlp\.up_proj"):
        gguf_weights.converted(path)


@pytest.fixture(scope="module")
def gemma() -> tuple[Path, Path]:
    """Gemma-3-270M as its packages ship it, and what it was converted to."""
    path = spec.find_gguf("gemma-3-270m")
    return path, gguf_weights.converted(path)


@pytest.fixture(scope="module")
def stored(gemma) -> dict[str, gguf.ReaderTensor]:
    """The tensors of its file, as the gguf package reads them."""
    return {tensor.name: tensor for tensor in gguf.GGUFReader(gemma[0]).tensors}


@pytest.mark.parametrize(
    ("name", "in_file"),
    [
        ("model.embed_tokens", "token_embd"),  # Q8_0
        ("model.norm", "output_norm"),
        ("model.layers.0.self_attn.q_proj", "blk.0.attn_q"),  # Q5_0
        ("model.layers.17.self_attn.k_proj", "blk.17.attn_k"),
        ("model.layers.5.self_attn.o_proj", "blk.5.attn_output"),  # Q4_K
        ("model.layers.11.mlp.down_proj", "blk.11.ffn_down"),
        ("model.layers.0.mlp.down_proj", "blk.0.ffn_down"),  # Q6_K
        ("model.layers.3.self_attn.k_norm", "blk.3.attn_k_norm"),
        ("model.layers.3.pre_feedforward_layernorm", "blk.3.ffn_norm"),
        ("model.layers.3.post_feedforward_layernorm", "blk.3.post_ffw_norm"),
    ],
)
def test_weights_of_gemma_are_those_of_its_file(gemma, stored, name, in_file):
    """As the gguf package widens them; its norms are stored as 1 more than transformers has."""
    tensor = stored[f"{in_file}.weight"]
    want = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    if "norm" in name:
        want = want - 1
    with safe_open(gemma[1] / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor(f"{name}.weight"), torch.from_numpy(want.copy()))


def test_gemma_is_its_catalogue_entry(gemma):
    known = spec.load("gemma-3-270m")
    for source in gemma:
        read = spec.load(source)
        assert (read.layers, read.parameters) == (known.layers, known.parameters)
        assert (read.vocab_size, read.max_length) == (known.vocab_size, known.max_length)


def test_gemma_makes_sense(gemma):
    """Its tokens are those of Gemma 3's published vocabulary, and it knows a capital."""
    tokenizer = AutoTokenizer.from_pretrained(gemma[1])
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    assert ids.tolist() == [[2, 818, 5279, 529, 7001, 563]]
    assert tokenizer.decode(ids[0, 1:]) == "The capital of France is"
    model = AutoModelForCausalLM.from_pretrained(gemma[1]).eval()
    with torch.inference_mode():
        likeliest = model(ids).logits[0, -1].topk(5).indices.tolist()
    assert " Paris" in [tokenizer.decode([token]) for token in likeliest]


def test_a_damaged_tokenizer(tmp_path, cache, weights):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights, merge="t ?")
    with pytest.raises(KvhouseError, match=r"tiny.gguf: cannot be loaded: .* out of vocabulary"):
        gguf_weights.converted(path)
    assert list(cache.iterdir()) == []


def test_the_file_of_smollm2_makes_sense(smollm2_model):
    """A wrong order of rows or a wrong scale of blocks would give noise."""
    engine = Engine(smollm2_model, EngineConfig(kv_memory=10_000_000, max_length=128))
    prompts = ["The capital of France is", "One, two, three, four, five,"]
    france, numbers = engine.generate(prompts, 3)
    assert france.text.startswith(" Paris")
    assert numbers.text.startswith(" six")


def test_streamed_text_is_the_text(smollm2_model):
    engine = Engine(smollm2_model, EngineConfig(kv_memory=10_000_000, max_length=128))
    (whole,) = engine.generate(["Once upon a time"], 8)
    streamed = list(engine.stream("Once upon a time", 8))
    assert "".join(token.text for token in streamed) == whole.text != ""
    assert whole.text == smollm2_model.tokenizer.decode(whole.token_ids, skip_special_tokens=True)
