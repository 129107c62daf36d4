"""What others took of the cores, from injected counters."""

import os

import pytest

from kvhouse.devices import others
from kvhouse.devices.others import Reading, Watch

#: Of a machine with three cores: ticks of user, nice, system, idle, iowait, irq, softirq, steal,
#: and guests', which are in the user's.
STAT = """cpu  1000 0 0 9000 0 0 0 0 500 0
cpu0 100 20 30 4000 500 6 7 8 90 0
cpu1 11 0 0 50 0 0 0 0 0 0
cpu10 7 0 0 50 0 0 0 3 0 0
intr 5
"""


@pytest.mark.parametrize(
    ("chosen", "busy"), [((0,), 171), ((1,), 11), ((10,), 10), ((0, 1, 10), 192)]
)
def test_a_core_is_busy_when_it_neither_idles_nor_waits_for_a_disk(chosen, busy):
    assert others.busy_seconds(STAT, chosen, 100) == pytest.approx(busy / 100)


@pytest.mark.parametrize(("text", "chosen"), [(STAT, (2,)), ("", (0,)), ("cpu0 1 2\n", (0,))])
def test_a_core_without_figures_is_said(text, chosen):
    with pytest.raises(ValueError, match="no figures of core"):
        others.busy_seconds(text, chosen, 100)


@pytest.mark.parametrize(
    ("after", "share"),
    [
        (Reading(20.0, 40.0, 25.0), 0.0),  # all of it was our own
        (Reading(20.0, 40.0, 15.0), 0.5),  # of two cores, one was others'
        (Reading(20.0, 30.0, 15.0), 0.0),
        (Reading(20.0, 24.0, 5.0), 0.2),
        (Reading(20.0, 19.9, 5.0), 0.0),  # its ticks are coarser than ours
        (Reading(20.0, 60.0, 5.0), 1.0),
        (Reading(10.0, 20.0, 5.0), 0.0),  # no time has passed
    ],
)
def test_what_is_busy_and_not_our_own_is_others(after, share):
    assert others.share(Reading(10.0, 20.0, 5.0), after, 2) == pytest.approx(share)


def test_a_load_that_is_always_there_is_seen(monkeypatch):
    """Every step is slowed alike, so no step stands out; the counters tell."""
    monkeypatch.setattr(others, "cores", lambda: (0, 1))
    readings = iter([Reading(0.0, 100.0, 3.0), Reading(10.0, 120.0, 13.0)])
    watch = Watch(lambda: next(readings), lambda: pytest.fail("the counters do"))
    assert watch.share() == pytest.approx(0.5)


def test_where_there_are_no_counters_threads_count():
    counted = iter([0.1, 0.4, 0.2])
    watch = Watch(lambda: None, lambda: next(counted))
    assert watch.share() == 0.4
    assert watch.share() == 0.2


def test_the_counters_of_this_machine_are_read():
    before = others.reading()
    assert before is not None
    sum(range(10**6))
    after = others.reading()
    assert after.wall > before.wall
    assert after.own > before.own
    assert after.busy >= before.busy
    assert 0 <= others.share(before, after, len(others.cores())) <= 1


def test_a_system_without_the_file_has_no_counters(monkeypatch, tmp_path):
    monkeypatch.setattr(others, "_STAT", str(tmp_path / "none"))
    assert others.reading() is None


def test_counting_gives_a_share():
    assert 0 <= others.waited() <= 1


def test_the_cores_are_those_of_this_process():
    assert set(others.cores()) == set(os.sched_getaffinity(0))
