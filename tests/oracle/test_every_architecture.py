"""What spec predicts is what transformers' own cache holds, for every causal LM there is."""

import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvhouse.errors import UnsupportedModel
from kvhouse.formats import get_format
from kvhouse.planner.engines.transformers import held_bytes
from kvhouse.spec.hf_config import read_config

pytestmark = pytest.mark.filterwarnings("ignore")

HERE = Path(__file__).parent
#: A tiny config for each ``model_type``, in the words of a checkpoint's config.json, and further
#: ones that change what is kept. Windows and chunks are 8 tokens.
CONFIGS = [json.loads(line) for line in (HERE / "tiny_configs.jsonl").read_text().splitlines()]
UNSUPPORTED = json.loads((HERE / "unsupported.json").read_text())
#: Tokens on both sides of the window, and far beyond; the sizes that vary within a group of
#: compressed tokens differ too.
LENGTHS, FEWER = (5, 8, 9, 24), (7, 24)
FORMATS = {"float32": "fp32", "bfloat16": "bf16"}
# These sizes are read from the file or not at all, whatever the class would fill in.
STATED = {("qwen3", "minimal")}
# Their classes fail at the first single token: only a prefill can be measured.
PREFILL_ONLY = {("mistral", "types_ignored"), ("reformer", "short_chunks")}
# Their classes cannot run in bfloat16.
ONLY_FLOAT32 = {"xlnet"}

Build = Callable[[str, dict[str, Any], str], tuple[Any, Any]]
Oracle = Callable[..., int]


def label(row: dict[str, Any]) -> str:
    return f"{row['model_type']}-{row.get('variant', 'default')}"


def supported() -> list[dict[str, Any]]:
    return [
        row
        for row in CONFIGS
        if row["model_type"] not in UNSUPPORTED
        and (row["model_type"], row.get("variant")) not in STATED
    ]


def predictions(row: dict[str, Any], saved: str, dtype: str, tokens: int) -> set[int]:
    """By the config as published and as transformers saves it."""
    published = {"model_type": row["model_type"], **row["config"]}
    return {
        held_bytes(
            read_config(config, "m", "here"),
            tokens,
            get_format(FORMATS[dtype]),
            dtype,
            row.get("encoder_tokens", 0),
        )
        for config in (published, json.loads(saved))
    }


def test_every_model_type_has_a_config() -> None:
    defaults = {row["model_type"] for row in CONFIGS if "variant" not in row}
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) <= defaults
    assert set(UNSUPPORTED) <= defaults
    # Of 196 types, at least 95 in 100 must be exact.
    assert len(UNSUPPORTED) <= 0.05 * len(defaults)


@pytest.mark.parametrize("row", supported(), ids=label)
def test_cache_bytes(row: dict[str, Any], own_model: Build, oracle: Oracle) -> None:
    across = row.get("encoder_tokens", 0)
    decoded = 0 if (row["model_type"], row.get("variant")) in PREFILL_ONLY else 1
    for dtype, lengths in (("float32", FEWER if "variant" in row else LENGTHS), ("bfloat16", (9,))):
        if dtype == "bfloat16" and (row["model_type"] in ONLY_FLOAT32 or "variant" in row):
            continue
        config, model = own_model(row["model_type"], copy.deepcopy(row["config"]), dtype)
        saved = config.to_json_string(use_diff=True)
        for tokens in lengths:
            held = oracle(model, tokens, decoded, encoder_tokens=across)
            assert predictions(row, saved, dtype, tokens) == {held}, (dtype, tokens)


@pytest.mark.parametrize("model_type", UNSUPPORTED)
def test_the_unsupported_fail_for_the_reason_given(
    model_type: str, own_model: Build, oracle: Oracle
) -> None:
    entry = UNSUPPORTED[model_type]
    row = next(row for row in CONFIGS if row["model_type"] == model_type)
    needed = entry.get("needs")
    if needed is None or importlib.util.find_spec(needed) is None:
        with pytest.raises(Exception, match=entry["error"]):
            oracle(own_model(model_type, copy.deepcopy(row["config"]), "float32")[1], 5)
    config = {"model_type": model_type, **row["config"]}
    if "refused" in entry:
        with pytest.raises(UnsupportedModel, match=entry["refused"]):
            read_config(config, "m", "here")
    else:
        inner = {**row["config"]["text_config"], "model_type": entry["decoder"]}
        alone, within = read_config(inner, "m", "here"), read_config(config, "m", "here")
        assert within.layers == alone.layers
