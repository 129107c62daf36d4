"""Fields that a class does not have are refused where they say how memory is kept."""

import dataclasses
import json
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from kvhouse.errors import UnsupportedModel
from kvhouse.spec.config import architectures
from kvhouse.spec.foreign import MARKS
from kvhouse.spec.hf_config import read_config

TINY = {
    row["model_type"]: row["config"]
    for row in map(
        json.loads, (Path(__file__).parent / "tiny_configs.jsonl").read_text().splitlines()
    )
    if "variant" not in row
}
#: Plain models, whose classes have none of these fields.
PLAIN = ["gemma", "glm4", "gpt_neox", "minimax_m2", "mixtral", "olmo2", "qwen3_moe"]
#: Read from files of the publishers, while the class has them under other names.
PUBLISHED = {
    *("attention_other_setting", "compress_ratios", "hybrid_layer_pattern", "linear_attn_config"),
    *("hybrid_override_pattern", "sparse_attention_config"),
}


def having(field: str) -> set[str]:
    """The known types whose classes have a field."""
    types = [kind for kind in architectures() if kind in CONFIG_MAPPING]
    decoders = [kind for kind in types if "inside" not in architectures()[kind]]
    return {
        kind
        for kind in decoders
        if field in {own.name for own in dataclasses.fields(CONFIG_MAPPING[kind])}
    }


@pytest.mark.parametrize("field", sorted(MARKS.keys() - PUBLISHED))
def test_the_types_are_those_whose_class_has_the_field(field: str) -> None:
    assert MARKS[field][1] == having(field)


@pytest.mark.parametrize("field", MARKS)
@pytest.mark.parametrize("model_type", PLAIN)
def test_other_types_refuse_it(model_type: str, field: str) -> None:
    config = {"model_type": model_type, **TINY[model_type]}
    read_config(config, "m", "here")
    for nothing in (None, 0):
        read_config({**config, field: nothing}, "m", "here")
    with pytest.raises(UnsupportedModel, match=f"field '{field}': .*'{model_type}' does not have"):
        read_config({**config, field: 4}, "m", "here")
