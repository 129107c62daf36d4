"""Cells as tasks of a Ray cluster that is there already."""

from __future__ import annotations

import re
import socket
from importlib import import_module
from typing import Any

from kvhouse.errors import KvhouseError
from kvhouse.replayer.sweep.backend import Ended
from kvhouse.replayer.sweep.grid import Cell
from kvhouse.replayer.sweep.row import Row
from kvhouse.replayer.sweep.work import VERSION, Sweep
from kvhouse.spec.fields import show

#: What can be the address of a cluster.
ADDRESS = re.compile(r"auto|local|(?:ray://)?[\w.\[\]:-]+:\d{1,5}", re.ASCII)

#: Seconds in which a cluster answers.
_PATIENCE = 5.0


class Cluster:
    """A backend of the CPUs of a Ray cluster.

    Raises:
        KvhouseError: Ray is not installed, there is no cluster, or it has no CPU.
    """

    def __init__(self, sweep: Sweep, address: str, workers: int | None = None) -> None:
        """Connect.

        Args:
            sweep: The sweep.
            address: Of the cluster, ``host:port`` or ``ray://host:port``; ``auto`` for the one
                that runs on this machine.
            workers: Tasks at once; by default the cluster's CPUs.
        """
        self._ray = _ray()
        self._ours = not self._ray.is_initialized()
        if self._ours:
            self._connect(address)
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        self._most = cpus if workers is None else workers
        if self._most < 1:
            raise KvhouseError(
                f"{self._most} workers of a cluster with {cpus} CPUs: give at least 1"
            )
        # No retries of its own: a cell that kills its worker is counted in one place.
        self._task = self._ray.remote(num_cpus=1, max_retries=0)(_row)
        self._sweep = self._ray.put(sweep)
        self._cells: dict[Any, Cell] = {}

    def _connect(self, address: str) -> None:
        if not ADDRESS.fullmatch(address):
            raise KvhouseError(
                f"Ray cluster {show(address)}: write auto, host:port or ray://host:port"
            )
        try:
            _knock(address)
            self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray has no class of its own for what goes wrong here
            raise KvhouseError(unreached(address, error)) from None

    @property
    def free(self) -> int:
        """Tasks that may be begun."""
        return self._most - self.busy

    @property
    def busy(self) -> int:
        """Tasks under way."""
        return len(self._cells)

    def begin(self, cell: Cell) -> None:
        """Begin a task."""
        self._cells[self._task.remote(self._sweep, cell)] = cell

    def wait(self, seconds: float) -> list[Ended]:
        """Cells that ended."""
        tasks = list(self._cells)
        ready, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(tasks, num_returns=1, timeout=seconds)
        return [self._ended(task) for task in ready]

    def _ended(self, task: object) -> Ended:
        cell = self._cells.pop(task)
        try:
            return Ended(cell, self._ray.get(task))
        except self._ray.exceptions.RayTaskError as error:
            raise KvhouseError(f"on the Ray cluster: {error.cause}") from None
        except self._ray.exceptions.RayError as error:
            return Ended(cell, None, " ".join(str(error).split())[:200])

    def close(self) -> None:
        """End all tasks, and leave the cluster to others."""
        for task in self._cells:
            self._ray.cancel(task, force=True)
        self._cells = {}
        if self._ours:
            self._ray.shutdown()


def _knock(address: str) -> None:
    """See that somebody answers, which Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), _PATIENCE).close()


def unreached(address: str, error: Exception) -> str:
    """Why there is no connection, and what to do."""
    if address == "auto":
        return "no Ray cluster runs on this machine: start one with `ray start --head`"
    words = " ".join(str(error).split())[:200]
    if isinstance(error, ConnectionError) and not error.errno:  # Ray's own: somebody answered
        return (
            f"no Ray cluster at {address} that lets us in: {words}: where it asks for a token, set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN if it is not the one in ~/.ray/auth_token"
        )
    return f"no Ray cluster at {address}: {words}: start one with `ray start --head`"


def _row(sweep: Sweep, cell: Cell) -> Row:
    """A task: the row of a cell, by the same kvhouse as here."""
    if sweep.facts["version"] != VERSION:
        raise RuntimeError(f"a worker has kvhouse {VERSION}, and not {sweep.facts['version']}")
    return sweep.row(cell)


def _ray() -> Any:  # noqa: ANN401 - a module
    try:
        return import_module("ray")
    except ImportError:
        raise KvhouseError("a Ray cluster needs ray: pip install 'kvhouse[ray]'") from None
