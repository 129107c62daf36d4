"""Parts of public logs as they stand in issues, each with its address, are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LOGS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "public_logs.jsonl").read_text().splitlines()
]


def test_there_are_many_of_each_engine() -> None:
    assert len(LOGS) >= 50
    assert {log["engine"] for log in LOGS} >= {"vllm", "vllm-v0", "sglang", "llama.cpp", "tgi"}


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["source"].partition("com/")[2])
def test_a_public_log_is_read(log: dict[str, Any], examined) -> None:
    report = examined(log["text"])
    facts, series = report.log.facts, report.log.facts.series
    assert {name: getattr(facts.one(name), "value", None) for name in log["facts"]} == log["facts"]
    last = {name: series[name].last for name in log["series"] if name in series}
    assert last == log["series"]
    if log["engine"]:
        assert report.log.engine == log["engine"]
    codes = {one.code for one in report.diagnoses}
    assert codes >= set(log["codes"]), codes
    if not log["codes"]:
        stopped = [one.code for one in report.diagnoses if one.severity == "error"]
        assert stopped == []
