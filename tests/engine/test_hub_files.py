"""Models of the hub: taken from its cache on this machine, or refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch

from kvhouse import spec
from kvhouse.engine import hub_files
from kvhouse.engine.load import describe_model, load_model
from kvhouse.errors import KvhouseError, SpecError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def snapshot(tiny_directory, tmp_path, monkeypatch) -> Path:
    """A model that was downloaded earlier, as huggingface_hub keeps it."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    repository = cache / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    directory = repository / "snapshots" / COMMIT
    shutil.copytree(tiny_directory("llama-gqa"), directory)
    return directory


@pytest.mark.parametrize("name", ["org/tiny", "hf:org/tiny", "org/tiny@main", "hf:org/tiny@main"])
def test_what_was_downloaded_is_loaded_without_a_network(snapshot, tiny_directory, name):
    want = load_model(tiny_directory("llama-gqa"))
    assert describe_model(name).layers == want.spec.layers
    loaded = load_model(name)
    assert torch.equal(loaded.model.lm_head.weight, want.model.lm_head.weight)
    assert hub_files.download(name.removeprefix("hf:")) == snapshot


def test_a_file_that_was_downloaded(snapshot):
    (snapshot / "m.gguf").write_bytes(b"GGUF")
    assert hub_files.download("org/tiny/m.gguf") == snapshot / "m.gguf"


@pytest.mark.parametrize("lost", ["model.safetensors", "model-00002-of-00002.safetensors"])
def test_an_incomplete_download_is_none(snapshot, lost):
    if lost != "model.safetensors":
        names = {"a": "model.safetensors", "b": lost}
        index = snapshot / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": names}))
        (snapshot / lost).touch()
        assert hub_files.downloaded("org/tiny") == snapshot
    (snapshot / lost).unlink()
    assert hub_files.downloaded("org/tiny") is None


@pytest.mark.parametrize("name", ["org/tiny", "org/tiny/m.gguf"])
def test_without_a_network_one_line_says_so(tmp_path, monkeypatch, name):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(KvhouseError, match=f"hub model {name}: cannot be downloaded: ") as caught:
        hub_files.download(name)
    assert "\n" not in str(caught.value)
    with pytest.raises(SpecError, match="HF_HUB_OFFLINE is set, so nothing is read"):
        load_model(f"hf:{name}")


def test_what_is_missing_is_downloaded(tmp_path, monkeypatch, tiny_directory):
    """The library is asked for configs, weights and tokenizers of the revision, and no pickles."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    asked = []

    def snapshot_download(repository, *, revision, allow_patterns, local_files_only):
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not there")
        asked.append((repository, revision, allow_patterns))
        return str(tiny_directory("llama-gqa"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert hub_files.download("org/tiny@v2") == tiny_directory("llama-gqa")
    ((repository, revision, patterns),) = asked
    assert (repository, revision) == ("org/tiny", "v2")
    assert {"*.safetensors", "*.json"} <= set(patterns)
    assert not any("bin" in pattern or "pt" in pattern for pattern in patterns)


def test_names_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    assert spec.hub_name("org/name") == spec.hub_name("hf:org/name") == "org/name"
    assert spec.hub_name("hf:org/name/m.gguf@v2") == "org/name/m.gguf@v2"
    assert [spec.hub_name(one) for one in ("smollm2", "here/model", "m.gguf", "a/b.gguf")] == [
        None
    ] * 4
    with pytest.raises(SpecError, match="not a model of the hub"):
        spec.hub_name("hf:name")
