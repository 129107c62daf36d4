"""Several ways of handing memory out, on the same arrivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvhouse.core.policy import PAGED, POLICIES, get_policy
from kvhouse.errors import KvhouseError
from kvhouse.replayer.recorder import Recorder
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.tiering import Tiering


def variants(setup: Setup, policies: Sequence[str] = POLICIES) -> list[Setup]:
    """One setup for each policy, and ``paged`` once more with a prefix cache and with tiers.

    These come last, what has fewer of the two first.

    Raises:
        KvhouseError: No policy, an unknown one, or one that is named twice; or a prefix cache or a
            tier, and ``paged`` is not among them.
    """
    names = [get_policy(name) for name in policies]
    if not names or len(set(names)) < len(names):
        raise KvhouseError(f"policies {', '.join(policies)}: give different ones, at least one")
    setup.require_paged(names, "compared")
    setups = [replace(setup.bare(), policy=name) for name in names]
    if setup.prefix_cache:
        setups.append(replace(setup, policy=PAGED, tiering=Tiering()))
    if setup.tiering:
        setups.append(replace(setup, policy=PAGED))
    return setups


def compare(
    setups: Sequence[Setup],
    *,
    slo: SLO | None = None,
    timeline: int | None = None,
    on_ended: Callable[[RequestRecord], None] | None = None,
    recorders: Sequence[Recorder | None] | None = None,
    stop: Stop | None = None,
) -> list[ReplayResult]:
    """Drive each setup; see ``Setup.drive``.

    Args:
        setups: What is driven.
        slo: What requests should meet.
        timeline: Bins of each timeline.
        on_ended: Called for each request that ended.
        recorders: What gathers a picture of each drive.
        stop: Ends it early.

    Returns:
        A result for each; fewer, and the last of them partial, where ``stop`` was asked for.

    Raises:
        KvhouseError: One of them is impossible.
    """
    results: list[ReplayResult] = []
    for setup, recorder in zip(setups, recorders or [None] * len(setups), strict=True):
        if results and stop and stop.asked:
            stop.cut_short = True
            break
        results.append(
            setup.drive(slo=slo, timeline=timeline, on_ended=on_ended, recorder=recorder, stop=stop)
        )
    return results
