"""What a sweep computes: from a cell of its grid to a row, in whatever process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import metadata
from typing import Any

from kvhouse.core.policy import PAGED
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.replayer.find import at_rate, own_rate
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.sweep.grid import Cell, Grid, Rate
from kvhouse.replayer.sweep.row import Row, Status, figures_of
from kvhouse.replayer.trace_table import TraceTable
from kvhouse.spec.model import ModelSpec

#: kvhouse's own.
VERSION = metadata.version("kvhouse")

#: Facts with these beginnings may be there for some cells and not for others.
OF_SOME = ("model ", "device ")

#: What of a setup the grid decides, or is digested on its own.
_VARIED = ("trace", "model", "device", "policy", "kv_format", "block_size")


@dataclass(frozen=True, slots=True)
class Sweep:
    """A grid of replays; build it with ``sweep_of``, which checks it.

    Attributes:
        grid: What is combined.
        base: The traffic, and every option that the grid does not vary.
        models: Each model of the grid by its name.
        devices: Each device of the grid by its name.
        slo: What requests should meet.
        own_rate: The trace's arrivals per second; None where all requests arrive at once.
        facts: What decides the figures, by name: kvhouse's version, the trace, each option, and
            a hash of each model and device.
    """

    grid: Grid
    base: Setup
    models: Mapping[str, ModelSpec]
    devices: Mapping[str, Device]
    slo: SLO | None
    own_rate: float | None
    facts: Mapping[str, str]

    def setup(self, cell: Cell) -> Setup:
        """The replay of a cell; a prefix cache and tiers go with ``paged`` alone."""
        setup = replace(
            self.base if cell.policy == PAGED else self.base.bare(),
            model=self.models[cell.model],
            device=self.devices[cell.device],
            policy=cell.policy,
            kv_format=cell.kv_format,
            block_size=cell.block_size,
        )
        factor = self._rate(cell.rate)[1]
        return setup if factor == 1 else at_rate(setup, factor)

    def row(self, cell: Cell) -> Row:
        """Replay a cell. Nothing that goes wrong in it is raised: the row says so."""
        try:
            setup = self.setup(cell)
            return self._row(
                cell, "done", **figures_of(setup.drive(slo=self.slo), setup.missing_bytes)
            )
        except KvhouseError as error:
            return self._row(cell, "impossible", reason=str(error))
        except Exception as error:
            return self.failed(cell, f"{type(error).__name__}: {error}")

    def failed(self, cell: Cell, reason: str) -> Row:
        """The row of a cell that could not be replayed."""
        return self._row(cell, "failed", reason=" ".join(reason.split()))

    def key(self, cell: Cell) -> str:
        """A hash of everything that decides the figures of a cell."""
        names = {f"model {cell.model}", f"device {cell.device}"}
        facts = {
            name: fact
            for name, fact in self.facts.items()
            if name in names or not name.startswith(OF_SOME)
        }
        own = (cell.policy, cell.kv_format, cell.block_size, self._rate(cell.rate)[1])
        return _digest([facts, own])

    def _row(self, cell: Cell, status: Status, reason: str = "", **figures: Any) -> Row:  # noqa: ANN401
        return Row(
            key=self.key(cell),
            model=cell.model,
            device=cell.device,
            policy=cell.policy,
            kv_format=cell.kv_format,
            block_size=cell.block_size,
            rate=self._rate(cell.rate)[0],
            status=status,
            reason=reason,
            **figures,
        )

    def _rate(self, rate: Rate) -> tuple[float | None, float]:
        return rate.on(self.own_rate)


def sweep_of(
    grid: Grid,
    base: Setup,
    models: Mapping[str, ModelSpec],
    devices: Mapping[str, Device],
    slo: SLO | None = None,
) -> Sweep:
    """A sweep that is ready to be computed.

    Args:
        grid: What is combined.
        base: The traffic, and every option that the grid does not vary; its model, device,
            policy, format and block size are not used.
        models: Each model of the grid by its name.
        devices: Each device of the grid by its name.
        slo: What requests should meet.

    Raises:
        KvhouseError: The rates cannot be had, or an option goes with none of the policies.
    """
    base.require_paged(grid.policies, "among the policies")
    requests = base.trace.requests
    table = requests if isinstance(requests, TraceTable) else TraceTable(requests)
    base = replace(base, trace=replace(base.trace, requests=table))
    own = None if base.as_backlog else own_rate(table)
    for rate in grid.rates:
        rate.on(own)
    options = {f.name: repr(getattr(base, f.name)) for f in fields(base) if f.name not in _VARIED}
    facts = {"version": VERSION, "trace": table.digest(), "slo": repr(slo), **options}
    facts |= {f"model {name}": _digest(repr(model)) for name, model in models.items()}
    facts |= {f"device {name}": _digest(repr(device)) for name, device in devices.items()}
    return Sweep(grid, base, models, devices, slo, own, facts)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
