"""Options of engines as users write them: texts, wrong types, wrong ranges."""

from __future__ import annotations

import pytest

from kvhouse.errors import KvhouseError
from kvhouse.planner.cases import case_for
from kvhouse.planner.engines import ENGINES, view
from kvhouse.planner.engines.applied import applied
from kvhouse.spec import load

CASE = case_for("llama-3-8b", "h200")


def test_a_version_is_read_as_it_is_written():
    """0.10 is the release after 0.9, not the number 0.1."""
    assert applied("vllm", CASE, {"version": "0.10"}).version == "0.10.0"
    assert applied("vllm", CASE, {"version": "0.11"}).version == "0.11.0"
    assert applied("llama.cpp", CASE, {"version": "2025.5"}).version == "2025.5.0"
    latest = applied("vllm", CASE, {"version": "none"})
    assert latest.version == applied("vllm", CASE, {}).version == "latest"


def test_every_type_is_read_from_its_text():
    seen = applied("vllm", CASE, {"block_size": "32", "utilization": "0.5", "hybrid": "False"})
    given = view(
        "vllm",
        CASE.spec,
        block_size=32,
        utilization=0.5,
        hybrid=False,
        max_model_len=CASE.max_length,
        total_bytes=CASE.budget().memory,
        used_bytes=CASE.budget().weights,
    )
    assert seen.to_dict(CASE.context) == given.to_dict(CASE.context)


@pytest.mark.parametrize(
    ("engine", "name", "text", "words"),
    [
        ("vllm", "tp", "abc", "whole number"),
        ("vllm", "tp", "1.5", "whole number"),
        ("vllm", "tp", "none", "whole number"),
        ("vllm", "tp", "-1", "from 1 to"),
        ("vllm", "blocks", "1e3", "whole number"),
        ("vllm", "blocks", "-1", "from 0 to"),
        ("vllm", "block_size", str(10**30), "from 1 to"),
        ("vllm", "utilization", "nan", "above 0 and at most 1"),
        ("vllm", "utilization", "5", "above 0 and at most 1"),
        ("vllm", "prefix_caching", "5", "true or false"),
        ("vllm", "draft_layers", "abc", "Python API"),
        ("vllm", "version", "-1", "write it like 0.11"),
        ("sglang", "mamba_ratio", "inf", "above 0"),
        ("sglang", "page_size", "0", "from 1 to"),
        ("sglang", "state_dtype", "foo", "choose one of"),
        ("llama.cpp", "n_seq_max", "1.5", "whole number"),
        ("transformers", "batch", "0", "from 1 to"),
        ("tgi", "fraction", "x", "a number"),
    ],
)
def test_a_wrong_value_is_named(engine, name, text, words):
    with pytest.raises(KvhouseError, match=words) as error:
        applied(engine, CASE, {name: text})
    assert "\n" not in str(error.value)
    assert name in str(error.value)


@pytest.mark.parametrize("value", ["x", 1.5, True, [1], {}, float("nan"), 2**60, -1, None])
def test_the_python_api_refuses_them_too(value):
    for engine, known in ENGINES.items():
        for name in ("tp", "batch", "n_seq_max", "page_size"):
            if name in known.option_names and not (name == "page_size" and value is None):
                with pytest.raises(KvhouseError, match=name):
                    view(engine, load("llama-3-8b"), **{name: value})
