"""Models of the hub, read from a real server on this machine."""

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvhouse.errors import SpecError
from kvhouse.spec import find_gguf, load
from kvhouse.spec import hub as reader

Tiny = Callable[..., dict[str, object]]
Make = Callable[..., Path]


def server_module() -> ModuleType:
    path = Path(__file__).with_name("hub_server.py")
    spec = importlib.util.spec_from_file_location("hub_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hub_server"] = module
    spec.loader.exec_module(module)
    return module


SERVER = server_module()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty hub, with no token at hand."""
    import huggingface_hub.constants

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with SERVER.serve(tmp_path / "hub") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running
    from huggingface_hub.utils import close_session

    close_session()


@pytest.fixture
def publish(hub: Any, tiny: Tiny) -> Callable[[str], Path]:
    """Put a small model with two shards on the hub under a name."""

    def put(name: str) -> Path:
        place: Path = hub.root / name
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(tiny("llama", torch_dtype="bfloat16")))
        rng = np.random.default_rng(0)
        shards = {
            "model-00001-of-00002.safetensors": {"model.embed_tokens.weight": (37, 24)},
            "model-00002-of-00002.safetensors": {"lm_head.weight": (37, 24), "norm.weight": (24,)},
        }
        for file, tensors in shards.items():
            save_file({n: rng.random(s, np.float32) for n, s in tensors.items()}, place / file)
        placed = {tensor: file for file, tensors in shards.items() for tensor in tensors}
        index = {"metadata": {}, "weight_map": placed}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))
        return place

    return put


STORED = 4 * (2 * 37 * 24 + 24)


@pytest.mark.parametrize("source", ["org/model", "hf:org/model", "org/model@v2"])
def test_config_and_headers_are_read_and_nothing_else(
    source: str, hub: Any, publish: Callable[[str], Path]
) -> None:
    place = publish("org/model")
    spec = load(source)
    assert replace(spec, name="m") == replace(load(place), name="m")
    assert spec.stored_weight_bytes == STORED
    assert spec.name == source.removeprefix("hf:")
    read = [entry for entry in hub.ranges if entry[0].endswith(".safetensors")]
    assert {entry[0] for entry in read} == {path.name for path in place.glob("*.safetensors")}
    for name, _, stop in read:
        header = int.from_bytes((place / name).read_bytes()[:8], "little")
        assert stop <= 8 + header
    revisions = {path.split("/")[4] for _, path, _ in hub.asked}
    assert revisions == {"v2" if "@" in source else "main"}


def test_a_redirect_is_followed_without_the_token(
    hub: Any, publish: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("org/moved")
    monkeypatch.setenv("HF_TOKEN", SERVER.TOKEN)
    assert load("org/moved").stored_weight_bytes == STORED
    assert {(host, token) for host, _, token in hub.asked} == {
        ("127.0.0.1", f"Bearer {SERVER.TOKEN}"),
        ("localhost", None),
    }


def test_a_server_without_ranges_is_cut_short_or_refused(publish: Callable[[str], Path]) -> None:
    place = publish("org/whole")
    with pytest.raises(SpecError, match="the server does not read parts of files"):
        load("org/whole")
    for path in place.glob("model*"):
        path.unlink()
    assert load("org/whole").parameters == load(place).parameters


def test_gguf_files_are_read_by_their_headers(
    hub: Any, make_gguf: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = hub.root / "org" / "quants"
    place.mkdir(parents=True)
    local = make_gguf()
    shutil.copy(local, place / "tiny.gguf")
    monkeypatch.setattr(reader, "_FIRST_BYTES", 256)
    spec = load("org/quants/tiny.gguf")
    assert replace(spec, name="m") == replace(load(local), name="m")
    assert hub.ranges[0] == ("tiny.gguf", 0, 256)
    # What is read grows twofold from part to part, so it is less than twice the header.
    from kvhouse.spec.gguf_header import read_header

    header = min(tensor.offset for tensor in read_header(local).tensors.values())
    starts = [start for _, start, _ in hub.ranges]
    assert starts == [0, *(stop for _, _, stop in hub.ranges[:-1])]
    assert hub.ranges[-1][2] < 2 * header
    with pytest.raises(SpecError, match=r"or it has no config\.json; .* org/quants/FILE\.gguf"):
        load("org/quants")
    with pytest.raises(SpecError, match=r"other\.gguf: there is no such file"):
        load("org/quants/other.gguf")


def test_a_split_model(hub: Any, make_gguf: Make, split: Callable[..., list[Path]]) -> None:
    place = hub.root / "org" / "quants" / "Q8"
    place.mkdir(parents=True)
    local = make_gguf()
    for part in split(local, 3):
        shutil.copy(part, place)
    spec = load("org/quants/Q8/part-00002-of-00003.gguf")
    assert replace(spec, name="m") == replace(load(local), name="m")
    (place / "part-00003-of-00003.gguf").unlink()
    with pytest.raises(SpecError, match=r"Q8/part-00003-of-00003\.gguf: there is no such file"):
        load("org/quants/Q8/part-00001-of-00003.gguf")


def test_smollm2_over_the_network(hub: Any) -> None:
    source = find_gguf("smollm2")
    place = hub.root / "org" / "smollm2"
    place.mkdir(parents=True)
    (place / "m.gguf").symlink_to(source)
    assert replace(load("org/smollm2/m.gguf"), name="m") == replace(load(source), name="m")
    # Its header takes 1.8 MB of 89.
    assert max(stop for _, _, stop in hub.ranges) <= 2**21


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("org/none", "hub model org/none: there is no such model, or it is private and needs a"),
        ("org/private", "hub model org/private: there is no such model, or it is private"),
        ("org/gated", "hub model org/gated: access must be granted to you: ask for it on the"),
        ("org/model@v9", "hub model org/model at v9: there is no such revision"),
        ("org/broken", r"hub model org/broken: config\.json: the hub answers with status 503"),
        ("org/garbage", "hub model org/garbage: the hub cannot be reached"),
        ("org/slow", r"config\.json: no answer within 0\.2 seconds; try again later"),
        ("org/a..b", "hub model org/a..b: not a name of the hub"),
    ],
)
def test_each_failure_has_its_own_line(
    source: str,
    reason: str,
    publish: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("private", "gated", "model", "broken", "garbage", "slow"):
        publish(f"org/{name}")
    monkeypatch.setattr(reader, "TIMEOUT", 0.2)
    with pytest.raises(SpecError, match=reason) as caught:
        load(source)
    assert str(caught.value).isprintable()


@pytest.mark.usefixtures("hub")
def test_a_name_that_is_nearly_one_of_the_catalogue() -> None:
    wanted = (
        r"^no file or directory 'meta-llama/Llama-2-13b-hf'; did you mean .*llama-2-13b.*\? Else: "
        r"hub model meta-llama/Llama-2-13b-hf: there is no such model"
    )
    with pytest.raises(SpecError, match=wanted):
        load("meta-llama/Llama-2-13b-hf")
    with pytest.raises(SpecError, match=r"^hub model meta-llama/Llama-2-13b-hf: there is no"):
        load("hf:meta-llama/Llama-2-13b-hf")


@pytest.mark.parametrize("name", ["private", "gated"])
def test_a_token_opens_what_it_may(
    name: str,
    publish: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(f"org/{name}")
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(SpecError, match=r"private and needs|access must be granted"):
        load(f"org/{name}")
    monkeypatch.setenv("HF_TOKEN", SERVER.TOKEN)
    assert load(f"org/{name}").stored_weight_bytes == STORED
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(SERVER.TOKEN)  # where `hf auth login` writes it
    assert load(f"org/{name}").stored_weight_bytes == STORED


def test_files_that_are_damaged_on_the_hub(publish: Callable[[str], Path]) -> None:
    place = publish("org/model")
    shard = place / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:100])
    with pytest.raises(SpecError, match=r"model-00002-of-00002\.safetensors: truncated"):
        load("org/model")
    shard.write_bytes(b"")
    with pytest.raises(SpecError, match="not a safetensors file: it has 0 bytes"):
        load("org/model")
    shard.unlink()
    with pytest.raises(SpecError, match=r"model-00002-of-00002\.safetensors: there is no such"):
        load("org/model")
    (place / "config.json").write_text("<html>please log in</html>")
    with pytest.raises(SpecError, match=r"hub model org/model: config\.json: not JSON"):
        load("org/model")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:{port}", "http://no-such-host.invalid"])
def test_no_network(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", endpoint.format(port=closed.getsockname()[1]))
        with pytest.raises(SpecError, match=r"the hub cannot be reached \(.*\); check the network"):
            load("org/model")


@pytest.mark.usefixtures("hub")
def test_offline_by_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SpecError, match="HF_HUB_OFFLINE is set"):
        load("org/model")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SpecError, match=r"need the huggingface_hub package: pip install 'kvhouse"):
        load("org/model")


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, kvhouse.spec; kvhouse.spec.load('llama-2-7b')\n"
        "heavy = {'huggingface_hub', 'httpx', 'httpx2', 'gguf', 'safetensors', 'numpy'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_no_hub_name_stays_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for source in (
        "./org/model",
        "org/model.gguf",
        "a/b.json",
        "/org/model",
        "no/such/thing",
        "a/" + "b" * 999,
    ):
        with pytest.raises(SpecError, match="no model "):
            load(source)
    for source in ("hf:model", "hf:", "hf:org/name/notes.txt"):
        with pytest.raises(SpecError, match="not a model of the hub: write hf:org/name"):
            load(source)
    (tmp_path / "org" / "model").mkdir(parents=True)
    with pytest.raises(SpecError, match=r"org/model: no config\.json and no \.gguf file"):
        load("org/model")
