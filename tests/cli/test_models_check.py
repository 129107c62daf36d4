"""``kvhouse models --check``: how the engine runs a model, in words and as JSON."""

import json

import pytest
from typer.testing import CliRunner

from kvhouse.cli import app
from kvhouse.errors import KvhouseError


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["models", "--check", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("llama-3.1-8b", "'llama-3.1-8b' runs packed: all requests of a step in one forward pass"),
        ("mpt-7b", "runs per sequence: one forward pass for each request of a step (its attention"),
        ("mimo-7b", "'mimo-7b' is refused: transformers has no class for model type 'mimo'"),
        ("deepseek-v3.2", "in one forward pass (at most 2,048 tokens: "),
    ],
)
def test_words(model: str, said: str) -> None:
    assert said in output(model)


def test_json() -> None:
    found = json.loads(output("deepseek-v3.2", "--json"))
    assert found.pop("reason").startswith("at most 2,048 tokens")
    assert found == {"model": "deepseek-v3.2", "kind": "packed", "max_length": 2048}


def test_no_such_model() -> None:
    with pytest.raises(KvhouseError, match="no model 'lama'"):
        output("lama")
