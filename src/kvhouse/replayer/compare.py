"""Several ways of handing memory out, on the same arrivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvhouse.core.policy import PAGED, POLICIES, get_policy
from kvhouse.errors import KvhouseError
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO


def variants(setup: Setup, policies: Sequence[str] = POLICIES) -> list[Setup]:
    """One setup for each policy; with a prefix cache, ``paged`` both without and with it.

    Raises:
        KvhouseError: No policy, an unknown one, or one that is named twice.
    """
    names = [get_policy(name) for name in policies]
    if not names or len(set(names)) < len(names):
        raise KvhouseError(f"policies {', '.join(policies)}: give different ones, at least one")
    bare = [replace(setup, policy=name, prefix_cache=False) for name in names]
    if not setup.prefix_cache:
        return bare
    if PAGED not in names:
        raise KvhouseError(f"a prefix cache goes with {PAGED}, which is not compared")
    return [*bare, replace(setup, policy=PAGED)]


def compare(
    setups: Sequence[Setup],
    *,
    slo: SLO | None = None,
    timeline: int | None = None,
    on_ended: Callable[[RequestRecord], None] | None = None,
) -> list[ReplayResult]:
    """Drive each setup; see ``Setup.drive``.

    Raises:
        KvhouseError: One of them is impossible.
    """
    return [setup.drive(slo=slo, timeline=timeline, on_ended=on_ended) for setup in setups]
