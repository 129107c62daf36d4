"""A candidate's changes, made to a setup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvhouse.replayer.setup import Setup

#: Changes that are not fields of a setup.
_BESIDE = ("host", "nvme", "replicas")


def applied(base: Setup, changes: Mapping[str, Any]) -> tuple[Setup, ...]:
    """The base with the changes, one setup for each replica.

    Args:
        base: The base.
        changes: As ``Candidate.fields``.
    """
    own = {name: value for name, value in changes.items() if name not in _BESIDE}
    tiering = base.tiering
    if "host" in changes:
        memory, link = changes["host"]
        tiering = replace(tiering, host_memory=memory, host_link=link)
    if "nvme" in changes:
        memory, link = changes["nvme"]
        tiering = replace(tiering, nvme_memory=memory, nvme_link=link)
    setup = _same_bytes(base, replace(base, **own, tiering=tiering))
    count: int = changes.get("replicas", 1)
    number, replicas = base.replica
    return tuple(
        replace(setup, replica=(number + replicas * index, replicas * count))
        for index in range(count)
    )


def _same_bytes(base: Setup, setup: Setup) -> Setup:
    """As many blocks as the base's pool has bytes for, where that was given in blocks."""
    if base.kv_blocks is None:
        return setup
    before, after = base.layout.block_bytes, setup.layout.block_bytes
    if before == after or not after:
        return setup
    return replace(setup, kv_blocks=max(1, base.kv_blocks * before // after))
