"""Whoever computes cells, one on each of its workers; and what is done when a worker dies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvhouse.replayer.stop import Stop
from kvhouse.replayer.sweep.grid import Cell
from kvhouse.replayer.sweep.row import Row
from kvhouse.replayer.sweep.work import Sweep

#: Workers that one cell may cost before it is given up.
MOST_DEATHS = 3

#: Seconds after which a backend that waits looks whether it should stop.
LOOK = 0.2


@dataclass(frozen=True, slots=True)
class Ended:
    """A cell that a worker is done with.

    Attributes:
        cell: The cell.
        row: What it gave; None where its worker died.
        reason: How it died.
    """

    cell: Cell
    row: Row | None
    reason: str = ""


class Backend(Protocol):
    """Workers that compute cells of one sweep, each of them alone on its worker."""

    @property
    def free(self) -> int:
        """Workers without a cell."""
        ...

    @property
    def busy(self) -> int:
        """Workers with one."""
        ...

    def begin(self, cell: Cell) -> None:
        """Give a cell to a free worker; where one died, to another in its place."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """Cells that ended; none where that takes longer."""
        ...

    def close(self) -> None:
        """End all workers at once, whatever they are doing."""
        ...


def computed(
    sweep: Sweep, cells: Sequence[Cell], backend: Backend, stop: Stop | None = None
) -> Generator[Row, None, None]:
    """The rows of cells, as they are done; fewer, where ``stop`` is asked for.

    A cell whose worker dies is begun again, since it may not have been its fault, and after
    ``MOST_DEATHS`` of them its row says that it failed.
    """
    stop = stop or Stop()
    waiting, deaths = deque(cells), Counter[int]()
    while waiting or backend.busy:
        while waiting and backend.free and not stop.asked:
            backend.begin(waiting.popleft())
        if stop.asked:
            stop.cut_short = True
            return
        for ended in backend.wait(LOOK):
            deaths[ended.cell.index] += ended.row is None
            if ended.row is not None:
                yield ended.row
            elif deaths[ended.cell.index] < MOST_DEATHS:
                waiting.appendleft(ended.cell)
            else:
                reason = f"its worker died {MOST_DEATHS} times: {ended.reason}"
                yield sweep.failed(ended.cell, reason)
