"""What a recorder keeps of a drive: few moments, the allocator's own placements, and the times.

That it changes nothing, and agrees with the ledger, is a property in ``test_leap.py``.
"""

from __future__ import annotations

import bisect
import itertools
import math

import numpy as np
import pytest

from kvhouse import devices, spec
from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.replayer import Setup, Trace, TraceRequest, read_trace
from kvhouse.replayer.curves import BINS, QUANTILES
from kvhouse.replayer.recorder import MOST_MOMENTS, MOST_ROWS, Recorder

USED, FREE = LEDGER_CLASSES.index("used"), LEDGER_CLASSES.index("free")


def record(trace, **options):
    """A drive, and everything that ended in it."""
    setup = Setup(
        read_trace(trace) if isinstance(trace, str) else trace,
        spec.load("llama-3-8b"),
        devices.get("a100-80g"),
        **options,
    )
    recorder, records = setup.recorder(), []
    result = setup.drive(recorder=recorder, on_ended=records.append)
    return result, recorder.recording, records


@pytest.mark.parametrize("as_backlog", [True, False])
def test_moments_stay_few_and_evenly_spread_however_many_steps_there_are(as_backlog):
    trace = "poisson:rate=500,prompt=40,output=uniform(500,2500),requests=60,seed=2"
    result, recording, _ = record(trace, as_backlog=as_backlog, kv_blocks=2000)
    times = recording.pool.times
    assert result.steps > 3 * MOST_MOMENTS
    assert MOST_MOMENTS // 4 <= len(times) <= MOST_MOMENTS
    assert times[0] == 0.0
    gaps = np.diff(times, append=result.makespan_seconds)
    assert gaps.min() > 0
    assert gaps.max() <= 4 * result.makespan_seconds / MOST_MOMENTS + 0.1


def test_a_replica_s_part_is_looked_at_as_often():
    trace = "backlog:prompt=40,output=500,requests=400"
    whole, part = (
        record(trace, as_backlog=True, kv_blocks=2000, replica=replica)[1].pool.times
        for replica in ((1, 1), (3, 8))
    )
    assert len(part) > 0.8 * len(whole) > 100


def test_a_contiguous_request_lies_in_one_run_and_a_paged_one_does_not():
    pieces = {}
    for policy in ("contiguous-pow2", "paged"):
        _, recording, _ = record("azure-conv-2023", policy=policy, kv_blocks=3000)
        pool = recording.pool
        assert len(pool.blocks) == MOST_ROWS
        pieces[policy] = 0
        for owners in pool.owners:
            for owner in set(owners[owners > 0].tolist()):
                rows = np.flatnonzero(owners == owner)
                pieces[policy] = max(pieces[policy], 1 + int((np.diff(rows) > 1).sum()))
    assert pieces["contiguous-pow2"] == 1
    assert pieces["paged"] > 10


def test_every_block_of_a_small_pool_is_shown_and_its_owner_is_who_was_admitted():
    result, recording, records = record(
        "poisson:rate=3,prompt=uniform(20,90),output=uniform(5,60),requests=40,seed=1",
        kv_blocks=60,
    )
    pool = recording.pool
    assert pool.blocks.tolist() == list(range(60))
    assert (pool.counts.sum(axis=1) == 60).all()
    for moment, kinds in enumerate(pool.kinds):
        counts = np.bincount(kinds, minlength=len(LEDGER_CLASSES))
        assert counts.tolist() == pool.counts[moment].tolist()
    held = {record.index: record for record in records}
    for time, owners in zip(pool.times, pool.owners, strict=True):
        for owner in set(owners[owners > 0].tolist()):
            request = held[pool.requests[owner - 1].index]
            assert request.admitted <= time < request.finished
    assert result.finished == 40


def test_an_idle_pool_is_shown_empty():
    requests = [TraceRequest(0.0, 100, 10), TraceRequest(50.0, 100, 10), TraceRequest(99.0, 50, 5)]
    result, recording, records = record(Trace("gaps", requests), kv_blocks=100)
    idle = [(one.finished, other.arrival) for one, other in itertools.pairwise(records)]
    times = recording.pool.times.tolist()
    for begin, end in idle:
        inside = range(bisect.bisect_left(times, begin), bisect.bisect_left(times, end))
        assert len(inside) >= 1
        assert all(recording.pool.counts[moment][FREE] == 100 for moment in inside)
        assert times[inside[0]] < begin + 2 * result.makespan_seconds / 450
    assert (recording.pool.counts[:, USED] > 0).any()


def test_nothing_to_drive_is_a_picture_of_nothing():
    _, recording, _ = record(Trace("none", []), kv_blocks=10)
    assert recording.pool.times.shape == (0,)
    assert recording.pool.requests == ()
    assert all(curve.quantiles == [] for curve in recording.curves.values())


def test_a_drive_that_has_not_ended_has_no_recording():
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = Recorder().recording


def test_curves_say_what_the_records_say():
    result, recording, records = record(
        "poisson:rate=20,prompt=uniform(20,900),output=uniform(1,60),requests=300,seed=4",
        kv_blocks=500,
    )
    end = result.makespan_seconds
    for name, curve in recording.curves.items():
        values = [(r.finished, v) for r in records if (v := getattr(r, name)) is not None]
        ordered = sorted(value for _, value in values)
        assert len(curve.quantiles) == QUANTILES
        assert (curve.quantiles[0], curve.quantiles[-1]) == (ordered[0], ordered[-1])
        middle = (len(ordered) - 1) / 2
        median = (ordered[math.floor(middle)] + ordered[math.ceil(middle)]) / 2
        assert curve.quantiles[QUANTILES // 2] == pytest.approx(median)
        assert curve.quantiles[198] == pytest.approx(getattr(result, name).p99)
        for number, (p50, p99) in enumerate(zip(curve.p50, curve.p99, strict=True)):
            inside = sorted(
                value for at, value in values if min(int(at * BINS / end), BINS - 1) == number
            )
            assert (p50 is None) == (p99 is None) == (not inside)
            if inside:
                assert inside[0] <= p50 <= p99 <= inside[-1]
                assert sum(value < p50 for value in inside) <= len(inside) / 2
                assert sum(value > p50 for value in inside) <= len(inside) / 2


def test_the_timeline_s_ledger_sums_to_the_pool():
    result, recording, _ = record("azure-conv-2023", policy="contiguous-max", kv_blocks=3000)
    sums = np.sum([recording.timeline.ledger[name] for name in LEDGER_CLASSES], axis=0)
    assert sums == pytest.approx(result.pool.bytes)
