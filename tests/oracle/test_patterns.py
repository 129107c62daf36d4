"""The pattern of layer kinds that a class lays down, for any number of layers."""

import dataclasses
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING
from transformers.cache_utils import get_layer_types_and_kwargs

from kvhouse.spec.config import architectures, decoder_config
from kvhouse.spec.pattern_rules import RULES
from kvhouse.spec.patterns import layer_types

pytestmark = pytest.mark.filterwarnings("ignore")

#: Their lists have one length only: a published one, or the length that the list itself sets.
FIXED = {"zamba2": 54, "nemotron_h": 4}
NAMES = {"num_hidden_layers", "n_layer", "n_layers", "num_layers"}
# The reader counts these as no kind of their own.
NOTHING = {"moe": "dummy", "mlp": "dummy"}


def layers_field(config_class: type) -> str:
    return next(field.name for field in dataclasses.fields(config_class) if field.name in NAMES)


def published(model_type: str, field: str, layers: int) -> dict[str, Any]:
    """A config that leaves all but the sizes that a file must state to its class."""
    hidden = architectures()[model_type].get("names", {}).get("hidden_size", ["hidden_size"])[0]
    return {"model_type": model_type, field: layers, hidden: 64}


@pytest.mark.parametrize("model_type", sorted(RULES))
def test_pattern(model_type: str) -> None:
    config_class = CONFIG_MAPPING[model_type]
    field = layers_field(config_class)
    checked = 0
    for layers in [FIXED[model_type]] if model_type in FIXED else [*range(1, 28), 61]:
        try:
            config = config_class(**{field: layers})
            theirs, _ = get_layer_types_and_kwargs(config)
        except (ValueError, ZeroDivisionError, StrictDataclassError):
            continue  # too few layers for this class
        ours = layer_types(decoder_config(published(model_type, field, layers), "here"))
        shared = getattr(config, "num_kv_shared_layers", 0) or 0
        kept = len(ours) - shared
        wanted = [kind if index < kept else "dummy" for index, kind in enumerate(ours)]
        if kept < 0:
            continue
        assert [NOTHING.get(kind, kind) for kind in wanted] == theirs, layers
        checked += 1
    assert checked > 0
