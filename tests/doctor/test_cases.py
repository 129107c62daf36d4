"""Every public case, written out as its engine's log, is read back with the case's numbers."""

import importlib.util
import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvhouse.doctor.case import derive
from kvhouse.doctor.diagnoses import diagnose
from kvhouse.doctor.diagnoses.base import Patient
from kvhouse.doctor.log import Log, read_log
from kvhouse.doctor.planned import planned
from kvhouse.errors import KvhouseError
from kvhouse.planner.engines.cases.case import Case, Missing
from kvhouse.planner.engines.cases.judge import judge
from kvhouse.planner.engines.cases.model import case_spec


def _rendered() -> ModuleType:
    """The module beside this one; tests are no package."""
    path = Path(__file__).with_name("rendered.py")
    found = importlib.util.spec_from_file_location("doctor_rendered", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


render = _rendered().render
DATA = Path(__file__).parents[1] / "planner" / "engines" / "data"
CASES = {
    case["id"]: case
    for name in ("log_cases.jsonl", "more_log_cases.jsonl")
    for case in map(json.loads, (DATA / name).read_text().splitlines())
}
#: Figures that no line of a log gave: a statement about candle's code, and an app's own estimate.
WITHOUT_LINES = {"c103", "c117"}
#: A branch of llama.cpp that was not merged, whose lines are not known.
UNKNOWN_LINES = {"c091"}
#: Not printed by these engines, or printed by no line of its own.
#: Figures in round numbers, a state that old builds print as a cache, and a sum not reported.
ROUNDED = {"c029-0", "c113-0", "m2-0"}
NOT_IN_LINE = {"usable_blocks", "kv_tokens"}
RENDERED = {
    f"{name}-{index}": (case, log)
    for name, case in CASES.items()
    if name not in WITHOUT_LINES | UNKNOWN_LINES
    for index, log in enumerate(render(case))
}


def read(text: str) -> Log:
    return read_log(io.BytesIO(text.encode()))


def test_every_case_has_a_log_but_for_those_that_never_had_one() -> None:
    written = {name.split("-")[0] for name in RENDERED}
    assert set(CASES) - written == WITHOUT_LINES | UNKNOWN_LINES
    assert len(CASES) >= 70


@pytest.mark.parametrize("name", RENDERED)
def test_the_numbers_come_back(name: str) -> None:
    case, rendered = RENDERED[name]
    facts = read(rendered.text).facts
    expected = dict(rendered.facts)
    if case["engine"] == "pegainfer":
        expected = {key: value for key, value in expected.items() if key not in NOT_IN_LINE}
    assert expected
    found = {key: getattr(facts.one(key), "value", None) for key in expected}
    rounded = {k: round(v, 2) if k in ("kv_self", "kv_cross") else v for k, v in expected.items()}
    assert found == rounded


@pytest.mark.parametrize("name", RENDERED)
def test_the_engine_is_known(name: str) -> None:
    case, rendered = RENDERED[name]
    names = {"vllm-v1": "vllm", "vllm-v1-early": "vllm", "vllm-metal": "vllm"}
    names |= {"vllm-ascend": "vllm", "ik_llama.cpp": "llama.cpp"}
    assert read(rendered.text).engine == names.get(case["engine"], case["engine"])


def _spec(case: dict[str, Any]) -> Any:
    try:
        return case_spec(Case(case))
    except (Missing, KvhouseError):  # a case without the numbers of its model
        return None


def _options(case: dict[str, Any]) -> dict[str, Any]:
    return {"engine_version": case["engine_version"] or ""}


DERIVABLE = [
    name
    for name, (case, _) in RENDERED.items()
    if judge(case).agrees
    and case["config"]
    and "num_hidden_layers" in case["config"]
    and case["engine"] not in ("whisper.cpp", "ggml")
    and name not in ROUNDED
]


@pytest.mark.parametrize("name", DERIVABLE)
def test_the_planner_derives_the_same_from_the_log_as_from_the_case(name: str) -> None:
    case, rendered = RENDERED[name]
    derived = derive(read(rendered.text), _spec(case), _options(case))
    assert derived.agrees, derived


def test_most_cases_are_derived() -> None:
    assert len(DERIVABLE) >= 35


def _codes(case: dict[str, Any], rendered: Any) -> set[str]:
    log, spec = read(rendered.text), _spec(case)
    derived = derive(log, spec, _options(case))
    return {
        one.code for one in diagnose(Patient(log, spec, derived, planned(log, spec, derived, {})))
    }


EXPECTED = {
    "need>avail": {"cannot_hold_one", "cannot_hold_one_unsized"},
    "max_seq_len>kv_tokens": {"cannot_hold_one", "pool_below_length"},
    "max_num_seqs_exceeds_mamba_blocks": {"too_few_states"},
}


@pytest.mark.parametrize("name", [n for n, (_, log) in RENDERED.items() if "error" in log.facts])
def test_an_error_has_its_diagnosis(name: str) -> None:
    case, rendered = RENDERED[name]
    assert _codes(case, rendered) & EXPECTED[rendered.facts["error"]]


def test_the_true_largest_length_is_told() -> None:
    """c026 prints it; of c005 it is the pool's 79,392 tokens; of c027 the planner finds it."""
    for name, largest in (("c026-0", "5,632"), ("c005-0", "79,392"), ("c027-0", None)):
        case, rendered = RENDERED[name]
        log, spec = read(rendered.text), _spec(case)
        if name == "c026-0":
            spec = None  # a TPU's pages are not the planner's
        derived = derive(log, spec, _options(case))
        found = diagnose(Patient(log, spec, derived, planned(log, spec, derived, {})))
        values = dict(found[0].values)
        if largest is not None:
            assert values["largest"] == largest
        else:
            assert 0 < int(values["largest"].replace(",", "")) < 131072


def test_other_cases_start() -> None:
    """A case without an error has no diagnosis that says that its server stopped."""
    stopped = {
        name: codes
        for name, (case, log) in RENDERED.items()
        if "error" not in log.facts
        if (codes := _codes(case, log) & {"cannot_hold_one", "no_blocks", "oom", "kv_buffer"})
    }
    assert stopped == {}


def test_known_causes_are_found_in_the_cases_that_have_them() -> None:
    assert "few_requests" in _codes(*RENDERED["c017-0"])  # one sequence, room for 171
    assert "hybrid_tokens" in _codes(*RENDERED["c043-1"])
    assert "tp_over_heads" in _codes(*RENDERED["c067-0"])  # 16 ranks, 8 heads
    assert {"hidden_rank", "uneven_ranks"} & _codes(*RENDERED["c006-0"])
    assert "pool_below_length" in _codes(*RENDERED["c075-0"])  # 1,741 tokens for 65,536
