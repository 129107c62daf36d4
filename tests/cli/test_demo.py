"""The paging demo, made small: its three ways agree, and it says so when they do not."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from kvhouse.demo.paging import POLICIES, Outcome, PagingDemo, Setting
from kvhouse.devices import Device
from kvhouse.engine.load import load_model
from kvhouse.errors import KvhouseError

DEVICE = Device("d", "A device", 2**34, 1e10, {"float32": 1e11}, "datasheet", "")
SMALL = Setting(requests=10, scale_lengths=1 / 64, max_length=128, reservations=2)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    demo = PagingDemo(SMALL, lambda *_: nullcontext(lambda _: None))
    loaded = load_model(SMALL.model, SMALL.dtype)
    return Outcome(
        SMALL,
        demo.plan(DEVICE),
        {policy: demo.replay(policy, DEVICE) for policy in POLICIES},
        {policy: demo.run(policy, loaded) for policy in POLICIES},
    )


def test_replay_predicts_the_run_and_paging_admits_more(outcome):
    outcome.check()
    contiguous, paged = (outcome.runs[policy].result for policy in POLICIES)
    assert contiguous.running.peak == SMALL.reservations
    assert paged.running.peak >= 3 * SMALL.reservations
    # Two reservations of 128 tokens of 30 layers x 2 x 3 heads x 64 x 4 B.
    assert outcome.runs["paged"].pool_bytes == 2 * 128 * 46_080


def test_the_outcome_is_plain_json(outcome):
    assert set(json.loads(json.dumps(outcome.to_dict()))) == {"setting", "plan", "replays", "runs"}


def test_a_difference_is_an_error(outcome):
    other = replace(outcome.runs["paged"], plan_log="0" * 64)
    damaged = replace(outcome, runs={**outcome.runs, "paged": other})
    with pytest.raises(KvhouseError, match="paged: replay and run differ in their step plans"):
        damaged.check()
