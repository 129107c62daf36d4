"""Damaged configs of any architecture: a clear error or sane bytes, in bounded time."""

import contextlib
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.errors import SpecError
from kvhouse.formats import get_format
from kvhouse.spec.config import architectures
from kvhouse.spec.hf_config import read_config

LINES = (Path(__file__).parent / "tiny_configs.jsonl").read_text().splitlines()
CONFIGS = [json.loads(line) for line in LINES]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.sampled_from([2**31, 2**70, -(2**70), 0.5, float("inf"), float("nan"), "", "full", "MM*-"])
)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=4)
    | st.dictionaries(st.sampled_from(["0", "head_dim", "attention", "num_heads"]), SCALARS)
    | st.lists(st.sampled_from(["full_attention", "sliding_attention", "conv", "hybrid"]))
)


def some_fields(data: st.DataObject, config: dict[str, Any]) -> dict[str, Any]:
    """A few fields changed or taken away, here or one level deeper."""
    changed = dict(config)
    for name in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        value = config[name]
        if isinstance(value, dict) and value and data.draw(st.booleans()):
            changed[name] = some_fields(data, value)
        elif data.draw(st.integers(0, 3)):
            changed[name] = data.draw(VALUES)
        else:
            changed.pop(name, None)
    return changed


@settings(max_examples=1200, deadline=2000)
@given(data=st.data(), row=st.sampled_from(CONFIGS))
def test_any_fields_of_any_architecture(data: st.DataObject, row: dict[str, Any]) -> None:
    config = {"model_type": row["model_type"], **some_fields(data, row["config"])}
    try:
        spec = read_config(config, "m", "here")
    except SpecError as error:
        text = str(error)
        assert text.startswith("here: ")
        assert text.isprintable()
        assert len(text) < 400
    else:
        sizes = [spec.kv_bytes(tokens, get_format("bf16")) for tokens in (0, 1, 100, 10_000)]
        assert 0 <= sizes[0] <= sizes[1] <= sizes[2] <= sizes[3] < 2**120
        assert all(type(size) is int for size in sizes)


@settings(max_examples=400, deadline=2000)
@given(model_type=st.sampled_from(sorted(architectures())), data=st.data())
def test_configs_that_say_almost_nothing(model_type: str, data: st.DataObject) -> None:
    names = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "text_config",
        "layer_types",
    ]
    config = {
        "model_type": model_type,
        **data.draw(st.dictionaries(st.sampled_from(names), VALUES)),
    }
    with contextlib.suppress(SpecError):
        read_config(config, "m", "here")
