"""A drive that is told to stop gives what ended by then, and loses no token on the way."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse import devices, spec
from kvhouse.replayer import SLO, Setup, Tiering, read_trace
from kvhouse.replayer.compare import compare, variants
from kvhouse.replayer.find import Goal, SearchStopped, find_max_rate, find_min_memory
from kvhouse.replayer.stop import Stop

TALK = (
    "conversations:rate=3,turns=4,pause=1,system=64,systems=2,block=16,prompt=uniform(5,60),"
    "output=uniform(2,90),requests=40,seed=3"
)
TRACE = read_trace(TALK)
MODEL, DEVICE = spec.load("llama-3-8b"), devices.get("a100-80g")
KINDS = {
    "roomy": {"kv_blocks": 400},
    "preempting": {"kv_blocks": 26, "watermark": 0.0, "max_length": 400, "as_backlog": True},
    "sharing": {"kv_blocks": 60, "prefix_cache": True},
    "swapping": {"kv_blocks": 26, "watermark": 0.0, "max_length": 400, "as_backlog": True,
                 "tiering": Tiering(2**26)},
    "in runs": {"kv_blocks": 80, "policy": "contiguous-oracle"},
}  # fmt: skip


class Bell:
    """Asks to stop when it has been rung so often, and keeps what it was rung with."""

    def __init__(self, most):
        self.stop, self.most, self.seen = Stop(), most, []

    def __call__(self, thing):
        self.seen.append(thing)
        if len(self.seen) >= self.most:
            self.stop.asked = True


class FinishBell(Bell):
    """Is rung by requests that finish, not by those that are rejected."""

    def __call__(self, record):
        if record.finished is not None:
            super().__call__(record)


def setup_of(kind):
    return Setup(TRACE, MODEL, DEVICE, **KINDS[kind])


@settings(max_examples=60)
@given(st.sampled_from(list(KINDS)), st.integers(1, 45))
def test_what_had_ended_is_what_counts_however_it_is_driven(kind, most):
    """Stepping and leaping meet at every end of a request, so they stop with equal results."""
    stepping, leaping = FinishBell(most), FinishBell(most)
    setup = setup_of(kind)
    slo = SLO(latency=1.0)
    stepped = setup.drive(
        slo=slo, on_ended=stepping, stop=stepping.stop, on_plan=lambda _: None, timeline=5
    )
    leapt = setup.drive(slo=slo, on_ended=leaping, stop=leaping.stop, timeline=5)
    assert asdict(leapt) == asdict(stepped)
    finished = leapt.finished
    assert finished == len(leaping.seen)
    assert finished >= most or not leapt.partial
    ended = finished + len(leapt.rejections)
    assert leapt.partial == leaping.stop.cut_short == (ended < 40)
    assert leapt.output_tokens == sum(record.generated for record in leaping.seen)
    assert leapt.goodput.share == sum(map(slo.met_by, leaping.seen)) / ended
    last = max(record.finished for record in leaping.seen)
    assert leapt.makespan_seconds == pytest.approx(last)


@settings(max_examples=60)
@given(st.sampled_from(list(KINDS)), st.integers(1, 200), st.booleans())
def test_tokens_are_conserved_at_any_event(kind, most, leap):
    """Which is checked where the result is made; requests are under way here."""
    bell = Bell(most)
    on_plan = None if leap else lambda _: None
    result = setup_of(kind).drive(on_event=bell, stop=bell.stop, on_plan=on_plan)
    assert result.submitted <= 40
    assert result.partial == (result.finished + len(result.rejections) < 40)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cases_are_what_they_are_called(kind):
    bell = Bell(12)
    result = setup_of(kind).drive(on_ended=bell, stop=bell.stop)
    assert result.partial
    assert (result.preemptions > 0) == (kind in ("preempting", "swapping"))
    assert (result.recomputed_tokens > 100) == (kind == "preempting")
    assert (result.loaded_tokens > 0) == (kind == "swapping")
    assert (result.reused_tokens > 0) == (kind == "sharing")


def test_a_drive_that_was_stopped_before_it_began():
    stop = Stop(asked=True)
    result = setup_of("roomy").drive(stop=stop, slo=SLO(latency=1.0))
    assert (result.submitted, result.finished, result.steps, result.partial) == (0, 0, 0, True)
    assert stop.cut_short
    assert result.latency_seconds is None


def test_a_stop_after_the_last_request_cuts_nothing_short():
    bell = Bell(40)
    setup = setup_of("roomy")
    result = setup.drive(on_ended=bell, stop=bell.stop)
    assert bell.stop.asked
    assert not bell.stop.cut_short
    assert result == setup.drive()
    assert not result.partial


def test_a_comparison_ends_with_the_replay_under_way():
    setups = variants(setup_of("roomy"))
    bell = Bell(40 + 7)
    results = compare(setups, on_ended=bell, stop=bell.stop)
    assert [result.partial for result in results] == [False, True]
    assert results[0] == setups[0].drive()
    bell = Bell(40)  # between two of them
    results = compare(setups, on_ended=bell, stop=bell.stop)
    assert [result.partial for result in results] == [False]
    assert bell.stop.cut_short


@pytest.mark.parametrize("replays", [4, 7])
def test_a_search_gives_the_best_so_far(replays):
    setup, goal = setup_of("roomy"), Goal(SLO(latency=1.2))
    for find in (find_max_rate, find_min_memory):
        whole = find(setup, goal)
        assert not whole.partial
        assert len(whole.probes) > replays
        bell = Bell(40 * replays + 5)
        found = find(setup, goal, on_ended=bell, stop=bell.stop)
        assert found.partial
        assert found.probes == whole.probes[:replays]
        held = [probe.value for probe in found.probes if probe.holds]
        assert found.value == (max if find is find_max_rate else min)(held)
        assert not found.result.partial
        failed = [probe.value for probe in found.probes if not probe.holds]
        beyond = [v for v in failed if (v > found.value) == (find is find_max_rate)]
        assert found.bounded == bool(beyond)


def test_a_search_that_found_nothing_yet_says_what_it_tried():
    bell = Bell(1)
    with pytest.raises(SearchStopped, match="before any setting held; blocks tried: none"):
        find_min_memory(setup_of("roomy"), Goal(None), on_ended=bell, stop=bell.stop)
