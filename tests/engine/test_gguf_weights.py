"""GGUF: a model written as llama.cpp writes it comes back weight for weight."""

from __future__ import annotations

import string

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kvhouse.engine import Engine, EngineConfig, gguf_weights
from kvhouse.engine.load import load_model
from kvhouse.errors import KvhouseError, UnsupportedModel

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in NAMES:
        return f"{NAMES[stem]}.{suffix}"
    number, _, rest = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{LAYER_NAMES[rest]}.{suffix}"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row r of a head's first half goes to 2r, of its second half to 2r + 1."""
    out, half = np.empty_like(weight), weight.shape[0] // heads // 2
    for head in range(heads):
        start = 2 * half * head
        for r in range(half):
            out[start + 2 * r] = weight[start + r]
            out[start + 2 * r + 1] = weight[start + half + r]
    return out


def write_gguf(path, weights: dict[str, torch.Tensor], *, extra=None, merge="t a") -> None:
    letters = string.ascii_letters + string.digits
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(48)
    writer.add_block_count(3)
    writer.add_feed_forward_length(80)
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(97)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*letters, *(f"t{letter}" for letter in letters[:35])])
    writer.add_token_types([1] * 97)
    writer.add_token_merges([merge])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in weights.items():
        values = tensor.numpy()
        if ".q_proj" in name:
            values = interleaved(values, 6)
        elif ".k_proj" in name:
            values = interleaved(values, 2)
        writer.add_tensor(gguf_name(name), values)
    if extra:
        writer.add_tensor(extra, np.ones(4, dtype=np.float32))
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


def test_weights_come_back(tmp_path, cache, weights):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, weights)
    loaded = load_model(path)
    got = loaded.model.state_dict()
    assert all(torch.equal(got[name], tensor) for name, tensor in weights.items())
    assert loaded.tokenizer is not None
    assert loaded.eos_token_ids == {2}
    assert len(list(cache.iterdir())) == 1


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
    write_gguf(path, weights, extra="rope_freqs.weight")
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        gguf_weights.converted(path)
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("architecture", "extra", "reason"),
    [
        ("gemma", {}, "no GGUF weights of architecture 'gemma', only of llama, qwen2, qwen3, phi3"),
        ("llama", {"llama.expert_count": 8}, "field 'llama.expert_count' is 8"),
        ("phi3", {"phi3.context_length": 64, "phi3.attention.sliding_window": 32}, "window' is 32"),
        ("llama", {"split.count": 2}, "no GGUF files of split models"),
    ],
)
def test_files_whose_weights_would_be_taken_wrongly(tmp_path, architecture, extra, reason):
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
