"""A sweep from its first cell to its last, or to where an earlier run had come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhouse.replayer.stop import Stop
from kvhouse.replayer.sweep.backend import Backend, computed
from kvhouse.replayer.sweep.cluster import Cluster
from kvhouse.replayer.sweep.processes import Processes
from kvhouse.replayer.sweep.ranking import ranked
from kvhouse.replayer.sweep.row import Row
from kvhouse.replayer.sweep.store import Store, opened_store
from kvhouse.replayer.sweep.work import Sweep


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep gave.

    Attributes:
        trace: The traffic's name.
        requests: How many requests that is.
        rows: One for each cell that is done, in the order of the grid.
        cells: Cells of the grid.
        reused: Rows that the results file had already.
    """

    trace: str
    requests: int
    rows: tuple[Row, ...]
    cells: int
    reused: int

    @property
    def partial(self) -> bool:
        """Whether it ended before all cells were done."""
        return len(self.rows) < self.cells

    def to_dict(self, sort: str) -> dict[str, Any]:
        """All of it as plain values, with the best rows by ``sort`` first; see ``ranking``."""
        return {
            "trace": self.trace,
            "requests": self.requests,
            "cells": self.cells,
            "reused": self.reused,
            "partial": self.partial,
            "sort": sort,
            "rows": [row.to_dict() for row in ranked(self.rows, sort)],
        }


def run_sweep(
    sweep: Sweep,
    *,
    out: str | Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    on_row: Callable[[Row], None] | None = None,
    on_begin: Callable[[int], None] | None = None,
    stop: Stop | None = None,
) -> SweepResult:
    """Replay every cell that the results file does not have yet.

    The processes import the main module of a program that calls this, so it must be one that can
    be imported (``if __name__ == "__main__":``).

    Args:
        sweep: What is computed.
        out: The results file; each row is safe in it, or in the journal beside it, once it is
            done. Rows of cells that failed are tried again.
        workers: Cells at once; by default the cores of this machine, or the cluster's CPUs.
        ray: Address of a Ray cluster to compute on; by default processes of this machine.
        on_row: Called for each row that is computed.
        on_begin: Called with the number of cells to compute, before the first.
        stop: Ends it early; cells under way are given up, all others are kept.

    Raises:
        KvhouseError: The results file cannot be used, there are no workers, or no cluster.
    """
    cells = sweep.grid.cells()
    keys = [sweep.key(cell) for cell in cells]
    with nullcontext() if out is None else opened_store(out, sweep.facts) as store:
        rows = dict(store.rows) if store else {}
        rows = {key: row for key, row in rows.items() if row.status != "failed"}
        missing = [cell for cell, key in zip(cells, keys, strict=True) if key not in rows]
        if on_begin:
            on_begin(len(missing))
        if missing:
            with (
                _backend(sweep, ray, workers) as backend,
                closing(computed(sweep, missing, backend, stop)) as computing,
            ):
                for row in computing:
                    _keep(row, rows, store)
                    if on_row:
                        on_row(row)
        if store and store.rows:
            store.finish(keys)
    found = tuple(rows[key] for key in keys if key in rows)
    traffic = sweep.base.part
    return SweepResult(
        trace=traffic.name,
        requests=len(traffic.requests),
        rows=found,
        cells=len(cells),
        reused=len(cells) - len(missing),
    )


def _keep(row: Row, rows: dict[str, Row], store: Store | None) -> None:
    if store:
        store.add(row)
    rows[row.key] = row


@contextmanager
def _backend(sweep: Sweep, ray: str | None, workers: int | None) -> Iterator[Backend]:
    backend: Backend = Processes(sweep, workers) if ray is None else Cluster(sweep, ray, workers)
    try:
        yield backend
    finally:
        backend.close()
