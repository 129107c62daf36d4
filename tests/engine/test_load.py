"""Loading: what a directory must hold, and what is said when it does not."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from kvhouse.engine.load import load_model
from kvhouse.errors import KvhouseError, SpecError


@pytest.fixture
def directory(tiny_directory, tmp_path):
    """A model directory that a test may damage."""
    return shutil.copytree(tiny_directory("llama-gqa"), tmp_path / "model")


def edit_config(directory, **fields):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def failure(source, *args) -> str:
    with pytest.raises(KvhouseError) as caught:
        load_model(source, *args)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_spec_and_model_agree(tiny_directory, family):
    loaded = load_model(tiny_directory(family))
    assert loaded.tokenizer is None
    assert loaded.spec.parameters == sum(p.numel() for p in loaded.model.parameters())
    assert loaded.eos_token_ids == {2}
    assert not loaded.model.training


def test_weights_are_the_files(directory):
    stored = load_file(directory / "model.safetensors")
    weights = load_model(directory).model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in stored.items())


def test_dtype_is_the_one_asked_for(directory):
    assert load_model(directory, "bfloat16").model.dtype == torch.bfloat16
    assert "unknown dtype 'int8'" in failure(directory, "int8")


def test_nothing_is_printed(directory, capfd):
    load_model(directory)
    assert capfd.readouterr() == ("", "")


def test_missing_weights_are_not_invented(directory):
    path = directory / "model.safetensors"
    stored = load_file(path)
    del stored["model.layers.1.mlp.up_proj.weight"]
    save_file(stored, path, metadata={"format": "pt"})
    assert "1 weights are missing, model.layers.1.mlp.up_proj.weight first" in failure(directory)


def test_weights_of_another_shape(directory):
    edit_config(directory, intermediate_size=84)
    assert str(directory) in failure(directory)


@pytest.mark.parametrize("left", [0, 5, 1000])
def test_truncated_weights(directory, left):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    message = failure(directory)
    assert message.startswith(f"{path}: ")
    assert "not a safetensors file" in message


def test_no_weights(directory):
    (directory / "model.safetensors").unlink()
    assert "no .safetensors file" in failure(directory)
    assert "the engine needs its weights" in failure(directory / "config.json")


def test_a_pickle_is_no_weights(directory):
    torch.save({}, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    assert "no .safetensors file" in failure(directory)


def test_a_damaged_tokenizer(directory):
    (directory / "tokenizer.json").write_text('{"model": 3}')
    assert f"{directory}: cannot be loaded" in failure(directory)


@pytest.mark.parametrize("source", ["no-such-model", "llama-2-7b"])
def test_what_is_not_there(source):
    with pytest.raises(SpecError, match="no "):
        load_model(source)


def long_rope(tmp_path, tiny_directory, trained: int):
    """A model whose RoPE has other frequencies beyond ``trained`` tokens."""
    directory = shutil.copytree(tiny_directory("phi3"), tmp_path / "model")
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    edit_config(directory, rope_parameters=rope, original_max_position_embeddings=trained)
    return directory


def test_long_rope_bounds_the_length(tmp_path, tiny_directory):
    assert load_model(long_rope(tmp_path, tiny_directory, 64)).spec.max_length == 64


def test_long_rope_of_a_short_model_does_not(tmp_path, tiny_directory):
    assert load_model(long_rope(tmp_path, tiny_directory, 4096)).spec.max_length == 256


def test_what_cannot_be_computed_is_refused(directory):
    transformers.XLNetConfig(n_layer=2, d_model=48, n_head=6).save_pretrained(directory)
    assert "the engine cannot run model type 'xlnet'" in failure(directory)
