"""Published configs with any field changed: a clear error or sane bytes, never anything else."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.errors import SpecError
from kvhouse.formats import get_format
from kvhouse.spec.hf_config import read_config

Config = dict[str, Any]

DATA = Path(__file__).with_name("data") / "public_configs.jsonl"
CONFIGS = [json.loads(line)["config"] for line in DATA.read_text(encoding="utf-8").splitlines()]
FIELDS = sorted(
    {name for config in CONFIGS for name in {**config, **config.get("text_config", {})}}
)


def nested(depth: int, key: str) -> Config:
    inner: Config = {}
    for _ in range(depth):
        inner = {key: inner, "model_type": "some_vl"}
    return inner


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 130)
    | st.sampled_from([10**30, -(10**30), 2**26, 2**31, 10**5000, 1e308, 0.5, 4096.0, "4096"])
    | st.sampled_from([float("nan"), float("inf"), "", "full_attention", "\x1b[31m\n", "M*-" * 9])
    | st.sampled_from(["llama", "gemma3", "mimo", "bert", "x" * 10**5, "LlamaForCausalLM"])
)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=4)
    | st.dictionaries(st.sampled_from(["0", "head_dim", "num_heads", "attention"]), SCALARS)
    | st.sampled_from(
        [["full_attention"] * 61, ["linear_attention"] * 48, [1] * 10**6, [0, 1] * 24]
    )
    | st.sampled_from([nested(400, "text_config"), nested(2, "llm_config")])
)


@st.composite
def damaged(draw: st.DrawFn, config: Config) -> Config:
    """A few fields changed, taken away or added, here or one level deeper."""
    changed = dict(config)
    for name in draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        value = config[name]
        if isinstance(value, dict) and value and draw(st.integers(0, 3)):
            changed[name] = draw(damaged(value))
        elif isinstance(value, list) and value and draw(st.booleans()):
            at = draw(st.integers(0, len(value) - 1))
            changed[name] = [*value[:at], *draw(st.lists(SCALARS, max_size=2)), *value[at + 1 :]]
        elif isinstance(value, int) and draw(st.booleans()):
            changed[name] = value * draw(st.sampled_from([-1, 0, 2, 3, 10**6, 0.5])) - 1
        elif draw(st.integers(0, 4)):
            changed[name] = draw(VALUES)
        else:
            del changed[name]
            break
    if draw(st.integers(0, 3)) == 0:
        changed[draw(st.sampled_from(FIELDS))] = draw(VALUES)
    return changed


@settings(max_examples=1500, deadline=2000)
@given(data=st.data(), config=st.sampled_from(CONFIGS))
def test_any_field_of_a_published_config(data: st.DataObject, config: Config) -> None:
    try:
        spec = read_config(data.draw(damaged(config)), "m", "here")
    except SpecError as error:
        text = str(error)
        assert text.startswith("here: ")
        assert text.isprintable()
        assert len(text) < 420
    else:
        assert 1 <= len(spec.layers) <= 2**14
        assert spec.architecture.isidentifier()
        sizes = [spec.kv_bytes(tokens, get_format("bf16")) for tokens in (0, 1, 4096, 10**6)]
        assert 0 <= sizes[0] <= sizes[1] <= sizes[2] <= sizes[3] < 2**120
        assert all(type(size) is int for size in sizes)
