"""How much of this machine others took while something was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

#: From this share on what was measured is said to be disturbed.
DISTURBED = 0.05

_STAT = "/proc/stat"
#: Seconds that each thread counts where the system does not say who computes.
_COUNTING = 0.05
#: Bytes that it looks through in one turn, a good part of a millisecond, without Python's lock.
_TURN_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a few counters, in seconds.

    Attributes:
        wall: Time.
        busy: What all processes together have computed on the cores that this one may run on,
            and what a hypervisor took from those.
        own: What this process has computed, on all its threads.
    """

    wall: float
    busy: float
    own: float


def cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def reading() -> Reading | None:
    """The counters now; None where the system has none (they are Linux's ``/proc/stat``)."""
    try:
        text = Path(_STAT).read_text(encoding="ascii", errors="replace")
        busy = busy_seconds(text, cores(), os.sysconf("SC_CLK_TCK"))
    except (AttributeError, ValueError, OSError):
        return None
    return Reading(time.perf_counter(), busy, time.process_time())


def busy_seconds(stat: str, chosen: tuple[int, ...], ticks: int) -> float:
    """What the cores were not idle for, after ``/proc/stat`` (proc_stat(5)).

    Its columns are user, nice, system, idle, iowait, irq, softirq and steal; guests' time, which
    comes behind them, is in the user's already.

    Args:
        stat: The file.
        chosen: Numbers of the cores.
        ticks: Of the file's unit in a second.

    Raises:
        ValueError: A core is not there, or its line is not understood.
    """
    lines = {name: rest for name, _, rest in (line.partition(" ") for line in stat.splitlines())}
    busy = 0
    for core in chosen:
        columns = [int(column) for column in lines.get(f"cpu{core}", "").split()[:8]]
        if len(columns) < 5:
            raise ValueError(f"no figures of core {core}")
        busy += sum(columns) - columns[3] - columns[4]
    return busy / ticks


def share(before: Reading, after: Reading, count: int) -> float:
    """The share of ``count`` cores that others took between two readings: 0 to 1."""
    capacity = (after.wall - before.wall) * count
    if capacity <= 0:
        return 0.0
    taken = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, taken / capacity))


class Watch:
    """Watches what others take from its making on.

    Where the system does not say, a thread for each core counts for a moment, now and at the end,
    and what it had to wait for a core is taken to be the same in between.

    Args:
        read: Gives the counters.
        count: Counts, and gives the share that was waited for.
    """

    def __init__(
        self,
        read: Callable[[], Reading | None] = reading,
        count: Callable[[], float] | None = None,
    ) -> None:
        self._read, self._count = read, count or waited
        self._before = read()
        self._waited = self._count() if self._before is None else 0.0

    def share(self) -> float:
        """The share of the cores that others took so far."""
        after = self._read()
        if self._before is None or after is None:
            return max(self._waited, self._count())
        return share(self._before, after, len(cores()))


def waited() -> float:
    """The share of a moment for which threads, one a core, had to wait for a core: 0 to 1."""
    threads = len(cores())
    with ThreadPoolExecutor(threads) as pool:
        shares = list(pool.map(lambda _: _computed(), range(threads)))
    return min(1.0, max(0.0, 1 - sum(shares) / threads))


def _computed() -> float:
    """The share of a moment for which this thread had a core."""
    import numpy as np

    array = np.zeros(_TURN_BYTES // 8, np.int64)
    began, computed = time.perf_counter(), time.thread_time()
    while time.perf_counter() - began < _COUNTING:
        np.bitwise_or.reduce(array)
    return (time.thread_time() - computed) / (time.perf_counter() - began)
