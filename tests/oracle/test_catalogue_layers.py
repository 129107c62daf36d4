"""The catalogue's models against the cache layers that transformers lays out for them."""

from typing import Any

import pytest
from transformers import CONFIG_MAPPING, DynamicCache

from kvhouse.spec import Layer, catalogue, load
from kvhouse.spec.resolve import read_catalogue

pytestmark = pytest.mark.filterwarnings("ignore")

#: Published with configs of their own, unknown to transformers under that name.
ELSEWHERE = {
    *("kimi-k2", "kimi-k2.5", "kimi-k2.6-nvfp4", "kimi-k3", "llama-3.3-nemotron-super-49b"),
    *("mimo-7b", "minimax-m3"),
}
#: Their cache layers come with the model's class; the sweep over all architectures has that.
OWN_CACHE_LAYERS = {
    *("deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4-flash-nvfp4", "deepseek-v4-pro-nvfp4"),
    *("minimax-m3-nvfp4",),
}


def without_marks(config: dict[str, Any]) -> dict[str, Any]:
    """A config that its class takes: the marks of quantisation and of other parts left out."""
    marks = ("quantization_config", "vision_config", "audio_config", "architectures")
    config = {key: value for key, value in config.items() if key not in marks}
    if "text_config" in config:
        config["text_config"] = without_marks(config["text_config"])
    return config


def their_config(name: str) -> Any:
    config = without_marks(read_catalogue()[name]["config"])
    return CONFIG_MAPPING[config.pop("model_type")](**config).get_text_config(decoder=True)


def window(layer: Layer) -> int | None:
    """The tokens that a layer's window or chunk keeps, of very many."""
    kept = max(part.kept_tokens(2**40) for part in layer.parts)
    return kept if 0 < kept < 2**30 else None


def test_there_are_models_of_all_kinds() -> None:
    assert len(catalogue()) >= 60
    parts = [part for name in catalogue() for layer in load(name).layers for part in layer.parts]
    kinds = {part.kind for part in parts}
    assert kinds >= {"full attention", "sliding window", "chunked attention", "latent (MLA)"}
    assert kinds >= {"state", "sparse indexer", "no KV"}


@pytest.mark.parametrize("name", sorted(set(catalogue()) - ELSEWHERE - OWN_CACHE_LAYERS))
def test_windows_and_states_are_where_transformers_has_them(name: str) -> None:
    theirs = [
        (getattr(layer, "sliding_window", None), "Linear" in type(layer).__name__)
        for layer in DynamicCache(config=their_config(name)).layers
    ]
    ours = [(window(layer), layer.kind == "state") for layer in load(name).layers]
    assert ours == theirs
