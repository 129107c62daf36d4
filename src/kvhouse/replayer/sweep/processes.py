"""Worker processes of this machine, each with a pipe of its own, so that a death has one cause."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from kvhouse.errors import KvhouseError
from kvhouse.replayer.sweep.backend import Ended
from kvhouse.replayer.sweep.grid import Cell
from kvhouse.replayer.sweep.work import Sweep

if TYPE_CHECKING:  # not every system has both
    from multiprocessing.context import ForkServerContext, SpawnContext

    Context = ForkServerContext | SpawnContext

#: Seconds in which a process that closed its pipe should have ended.
_LAST_BREATH = 5.0


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _context() -> Context:
    if "forkserver" in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("forkserver")
    return multiprocessing.get_context("spawn")


class Processes:
    """A backend of as many processes as it is asked for, started when there is work for them.

    Raises:
        KvhouseError: Less than one worker.
    """

    def __init__(self, sweep: Sweep, workers: int | None = None) -> None:
        """Args: sweep: The sweep. workers: By default one for each core."""
        self._sweep = sweep
        self._most = cores() if workers is None else workers
        if self._most < 1:
            raise KvhouseError(f"{self._most} workers: give at least 1")
        # Its workers have kvhouse imported when they start; none shares the parent's threads.
        self._context = _context()
        self._context.set_forkserver_preload(["__main__", __name__])
        self._idle: list[_Worker] = []
        self._cells: dict[Connection, tuple[_Worker, Cell]] = {}

    @property
    def free(self) -> int:
        """Workers without a cell."""
        return self._most - self.busy

    @property
    def busy(self) -> int:
        """Workers with one."""
        return len(self._cells)

    def begin(self, cell: Cell) -> None:
        """Give a cell to a worker."""
        worker = self._idle.pop() if self._idle else _Worker(self._context, self._sweep)
        worker.begin(cell)
        self._cells[worker.pipe] = worker, cell

    def wait(self, seconds: float) -> list[Ended]:
        """Cells that ended."""
        ended = []
        ready = set(wait(list(self._cells), seconds))
        for pipe in [pipe for pipe in self._cells if pipe in ready]:
            worker, cell = self._cells.pop(pipe)
            try:
                ended.append(Ended(cell, pipe.recv()))
                self._idle.append(worker)
            except (EOFError, OSError):
                ended.append(Ended(cell, None, worker.death()))
        return ended

    def close(self) -> None:
        """Kill them all."""
        for worker in (*self._idle, *(worker for worker, _ in self._cells.values())):
            worker.kill()
        self._idle, self._cells = [], {}


class _Worker:
    """A process, and this end of its pipe."""

    def __init__(self, context: Context, sweep: Sweep) -> None:
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, sweep), daemon=True)
        with _deaf_to_ctrl_c():
            self._process.start()
        theirs.close()

    def begin(self, cell: Cell) -> None:
        """Hand a cell over; that the process is dead is seen when its answer is waited for."""
        try:
            self.pipe.send(cell)
        except OSError:
            return

    def death(self) -> str:
        """How it ended, once its pipe is closed."""
        self._process.join(_LAST_BREATH)
        code = self._process.exitcode
        self.kill()
        if code is not None and code < 0:
            return f"killed by signal {-code}, as the system does where memory runs out"
        return "no exit code" if code is None else f"exit code {code}"

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.pipe.close()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Hold Ctrl-C back, and let a process that is started have it blocked for good.

    It is for the parent to say what is to be done, and a terminal sends it to all.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting it lets Ctrl-C through again, so that is done before and not within.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, sweep: Sweep) -> None:
    """Compute cells until nobody asks any more."""
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    while True:
        try:
            cell = pipe.recv()
            pipe.send(sweep.row(cell))
        except (EOFError, OSError):
            return


def _leave_with_the_parent() -> None:
    """A parent that was killed cannot say so, and its workers must not go on for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
