"""What tests of commands share that start processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:  # it ended meanwhile
            continue
        if int(parent) == pid:
            found.append(int(stat.parent.name))
    return found


@pytest.fixture
def children() -> Callable[[int], list[int]]:
    """Processes that a process has started, by the system's own account."""
    return _children


@pytest.fixture
def grandchildren() -> Callable[[int], list[int]]:
    """Workers of a sweep: a server starts them, or Ray's raylet, which the command has started."""
    return lambda pid: [one for child in _children(pid) for one in _children(child)]
