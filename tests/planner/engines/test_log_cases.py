"""Public engine logs are reproduced from config, flags and memory; their print is the oracle."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvhouse.errors import KvhouseError
from kvhouse.planner.engines.cases import judge, read_cases, summary
from kvhouse.planner.engines.cases.case import Case
from kvhouse.planner.engines.cases.model import case_spec
from kvhouse.spec import load

DATA = Path(__file__).parent / "data" / "log_cases.jsonl"
MORE = list(read_cases(DATA.with_name("more_log_cases.jsonl")))
CASES = {case["id"]: case for case in read_cases(DATA)}
EXACT = [name for name, case in CASES.items() if case["check"]["agree"] == "exact"]
#: Cases that state too little to derive a figure, with what they lack.
INCOMPLETE = {
    "c030": "max_model_len",
    "c031": "nothing",  # the memory
    "c044": "nothing",  # the config
    "c046": "nothing",  # the config
    "c055": "nothing",  # the config
    "c075": "config",
    "c099": "nothing",  # the free memory
}


def script():
    path = Path(__file__).parents[3] / "benchmarks" / "log_cases.py"
    found = importlib.util.spec_from_file_location("log_cases", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_file_has_its_cases():
    assert (len(CASES), len(EXACT)) == (66, 37)


@pytest.mark.parametrize("name", sorted(set(CASES) - set(INCOMPLETE)))
def test_log_is_reproduced(name):
    verdict = judge(CASES[name])
    assert verdict.checks
    assert [check for check in verdict.checks if not check.agrees] == []


@pytest.mark.parametrize("case", MORE, ids=lambda case: case["id"])
def test_further_log_is_reproduced(case):
    verdict = judge(case)
    assert verdict.agrees
    assert verdict.fits == ()


@pytest.mark.parametrize(("name", "lacks"), INCOMPLETE.items())
def test_incomplete_log_says_what_it_lacks(name, lacks):
    verdict = judge(CASES[name])
    assert not verdict.computable
    assert lacks in verdict.reason


def test_what_logs_leave_open_is_named():
    fits = {name: judge(case).fits for name, case in CASES.items()}
    # The threads or their shapes tell these apart: OpenRLHF ran on two GPUs a model, Llama 4 on
    # eight, a TPU has pages of 256, and the DeepSeek-V4 log was made with batches of 4,096.
    assert {name: fit for name, fit in fits.items() if fit} == {
        "c008": ("tp = 2",),
        "c025": ("tp = 8",),
        "c026": ("block_size = 256",),
        "c093": ("n_ubatch = 4096",),
    }


@pytest.mark.parametrize("name", EXACT)
def test_another_figure_would_not_agree(name):
    case = CASES[name]
    for check in judge(case).checks:
        value = case["reported"].get(check.name)
        if not isinstance(value, int | float):
            continue
        other = copy.deepcopy(case)
        step = max(1, value * 3 // 100) if isinstance(value, int) else round(value * 0.03 + 0.02, 2)
        other["reported"][check.name] = value + step
        assert not judge(other).agrees, check.name


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("c017", "num_hidden_layers", 29),
        ("c027", "num_key_value_heads", 9),
        ("c033", "linear_num_value_heads", 64),
        ("c037", "head_dim", 128),
        ("c064", "head_dim", 64),
        ("c070", "num_hidden_layers", 47),
        ("c088", "kv_lora_rank", 256),
        ("c096", "linear_conv_kernel_dim", 5),
        ("c107", "n_text_layer", 23),
        ("c113", "d_state", 32),
    ],
)
def test_another_config_would_not_agree(name, field, value):
    other = copy.deepcopy(CASES[name])
    assert other["config"][field] != value
    other["config"][field] = value
    assert not judge(other).agrees


@pytest.mark.parametrize(
    ("name", "part", "field", "lacks"),
    [
        ("c016", "config", "num_key_value_heads", "num_key_value_heads"),
        ("c027", "config", "layer_pattern", "layer_pattern"),
        ("c033", "config", "linear_conv_kernel_dim", "linear_conv_kernel_dim"),
        ("c080", "flags", "n_ctx", "n_ctx"),
        ("c107", "config", "n_text_state", "n_text_state"),
        ("c103", "flags", "max_seq", "n_ctx"),
    ],
)
def test_a_null_is_never_filled(name, part, field, lacks):
    other = copy.deepcopy(CASES[name])
    other[part][field] = None
    verdict = judge(other)
    assert not verdict.computable
    assert lacks in verdict.reason


def test_unknown_engine_is_named():
    verdict = judge({"id": "x", "engine": "someone's engine", "config": None})
    assert 'no rules for engine "someone\'s engine"' in verdict.reason
    assert not judge({}).computable


def test_script_prints_rows_and_a_last_line(capsys):
    assert script().main([str(DATA)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CASES) + 1
    assert lines[-1] == "37 of 37 exact cases reproduced"
    assert "not computable" in next(line for line in lines if line.startswith("c075"))


def test_script_fails_when_an_exact_case_differs(tmp_path, capsys):
    wrong = copy.deepcopy(CASES["c016"])
    wrong["reported"]["kv_tokens"] += 160
    path = tmp_path / "cases.jsonl"
    path.write_text(f"\n{json.dumps(wrong)}\n\n{json.dumps(CASES['c017'])}\n", encoding="utf-8")
    assert script().main([str(path)]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "1 of 2 exact cases reproduced"
    assert "DIFFERS" in out


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"id": "x"'])
def test_script_refuses_what_is_no_case(text, tmp_path, capsys):
    path = tmp_path / "cases.jsonl"
    path.write_text(f"\n{text}\n", encoding="utf-8")
    assert script().main([str(path)]) == 2
    assert "line 2" in capsys.readouterr().err
    with pytest.raises(KvhouseError, match="cannot be read"):
        list(read_cases(tmp_path / "none.jsonl"))


def test_summary_counts_only_exact_cases_that_can_be_computed():
    verdicts = [judge(CASES[name]) for name in ("c016", "c075", "c058")]
    assert summary(verdicts) == "1 of 1 exact cases reproduced"


def test_numbers_and_the_reader_describe_the_same_model():
    published = {
        "c005": "llama-3.1-405b",
        "c008": "llama-3-70b",
        "c017": "qwen3-1.7b",
        "c027": "gpt-oss-120b",
        "c029": "gemma-4-31b-nvfp4",
        "c033": "qwen3.5-27b",
        "c037": "qwen3.5-35b-a3b",
        "c040": "qwen3-next-80b-a3b",
        "c053": "qwen3.5-122b-a10b",
        "c070": "qwen3-30b-a3b",
        "c082": "mixtral-8x7b",
        "c088": "deepseek-r1",
        "c103": "qwen3-0.6b",
    }
    for name, model in published.items():
        numbers = case_spec(Case(CASES[name]))
        assert Counter(numbers.layers) == Counter(load(model).layers), name


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@given(st.sampled_from(sorted(CASES)), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_hostile_values_give_a_verdict(name, data):
    case = copy.deepcopy(CASES[name])
    for part in ("config", "flags", "reported", "hw", "check"):
        values = case.get(part)
        for field in list(values) if isinstance(values, dict) else []:
            if data.draw(st.integers(0, 4)) == 0:
                values[field] = data.draw(JUNK)
    if data.draw(st.booleans()):
        field = data.draw(st.sampled_from(sorted(case)))
        case[field] = data.draw(JUNK)
    verdict = judge(case)
    assert verdict.computable or verdict.reason
