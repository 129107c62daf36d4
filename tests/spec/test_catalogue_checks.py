"""The catalogue's configs, field by field, against what other public sources say of the models.

A row of the table holds the values that one source gives, under the config's names; where each
comes from, the table and ``data/README.md`` say.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kvhouse.spec.resolve import read_catalogue

DATA = Path(__file__).with_name("data") / "catalogue_checks.jsonl"
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()
]
#: The fields that decide what attention keeps; a config may write them in its family's own names.
NAMES = {
    "layers": {"num_hidden_layers", "n_layers", "n_layer"},
    "hidden size": {"hidden_size", "d_model", "n_embd"},
    "heads": {"num_attention_heads", "n_heads", "n_head"},
    "KV heads": {"num_key_value_heads", "num_kv_heads"},
    "vocabulary": {"vocab_size"},
}


def decoder(name: str) -> dict[str, Any]:
    config: dict[str, Any] = read_catalogue()[name]["config"]
    return dict(config.get("text_config", config))


def stated(config: dict[str, Any], value: object, field: str) -> object:
    """A config's own value; of a group of settings, those that the source gives."""
    ours = config[field]
    if isinstance(value, dict) and isinstance(ours, dict):
        return {key: ours.get(key) for key in value}
    return ours


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}: {row['source']}")
def test_a_config_says_what_the_source_says(row: dict[str, Any]) -> None:
    config = decoder(row["model"])
    ours = {field: stated(config, value, field) for field, value in row["fields"].items()}
    assert ours == row["fields"]


def test_every_entry_is_a_published_file_or_was_checked() -> None:
    checked = {row["model"] for row in ROWS}
    for name, entry in read_catalogue().items():
        if ", by way of " in entry["source"] or "never published" in entry["source"]:
            assert name not in checked
        else:
            assert ", checked against " in entry["source"], name
            assert name in checked


@pytest.mark.parametrize("name", sorted({row["model"] for row in ROWS}))
def test_the_deciding_fields_were_checked(name: str) -> None:
    fields = {field for row in ROWS if row["model"] == name for field in row["fields"]}
    config = decoder(name)
    for what, names in NAMES.items():
        assert names & set(config) <= fields, what


def test_the_made_up_model_differs_in_nothing_but_its_kv_heads() -> None:
    config = {**decoder("llama-2-70b-mha"), "num_key_value_heads": 8}
    assert config == decoder("llama-2-70b")
