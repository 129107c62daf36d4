"""The pool as it is now: every byte by class, and who holds which blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvhouse.core.ledger import LEDGER_CLASSES, Ledger
from kvhouse.core.request import Request, RequestState
from kvhouse.core.scheduler import Scheduler
from kvhouse.engine import Engine
from kvhouse.replayer.pool_map import Array, look_at
from kvhouse.server.totals import StepTotals


@dataclass(frozen=True, slots=True)
class PoolSight:
    """The pool between two steps.

    Attributes:
        ledger: Every byte by class.
        blocks: Blocks by class; a block counts by what most of it is to its request.
        running: Requests that hold memory.
        waiting: Requests that wait for it.
        requests: Each of them, those that run first.
        cells: The map: runs of drawn blocks of one class and one request.
    """

    ledger: Ledger
    blocks: dict[str, int]
    running: int
    waiting: int
    requests: list[dict[str, Any]]
    cells: list[dict[str, Any]]


def look(engine: Engine, cells: int) -> PoolSight:
    """Look at an engine's pool; to be called by the engine's thread, between two steps.

    Args:
        engine: The engine.
        cells: The most blocks to draw, evenly spread where the pool has more.
    """
    scheduler = engine.scheduler
    total = scheduler.memory.total_blocks
    drawn = min(cells, total)
    # The middle of each cell's share of the pool; every block once where there is a cell for each.
    blocks = (np.arange(drawn, dtype=np.int64) * 2 + 1) * total // (2 * drawn or 1)
    seen = look_at(scheduler, blocks)
    counts = dict(zip(LEDGER_CLASSES, seen.counts.tolist(), strict=True))
    running, waiting = scheduler.running, list(scheduler.waiting)
    return PoolSight(
        scheduler.ledger(),
        counts,
        len(running),
        len(waiting),
        [_request(one, scheduler) for one in (*running, *waiting)],
        _runs(seen.owners, seen.kinds),
    )


def state(
    engine: Engine, model: str, seconds: float, totals: StepTotals, cells: int
) -> dict[str, Any]:
    """What ``GET /kv`` gives; to be called by the engine's thread, between two steps.

    Args:
        engine: The engine.
        model: What requests call its model.
        seconds: Since the server began.
        totals: What its steps add up to.
        cells: See ``look``.
    """
    sight, pool = look(engine, cells), describe(engine)
    return {
        "model": model,
        "seconds": seconds,
        "pool": pool,
        "ledger": sight.ledger.to_dict(),
        "blocks": sight.blocks,
        "running": sight.running,
        "waiting": sight.waiting,
        "totals": totals.to_dict(),
        "requests": sight.requests,
        "cells": min(cells, pool["blocks"]),
        "map": sight.cells,
    }


def describe(engine: Engine) -> dict[str, Any]:
    """What does not change about an engine's pool."""
    memory, config = engine.scheduler.memory, engine.config
    return {
        "policy": memory.policy,
        "kv_format": config.kv_format,
        "block_tokens": memory.layout.block_size,
        "block_bytes": memory.layout.block_bytes,
        "blocks": memory.total_blocks,
        "bytes": memory.total_bytes,
        "max_length": engine.scheduler.config.max_length,
        "max_running": engine.scheduler.config.max_running,
        "prefix_cache": config.prefix_cache,
    }


def _request(request: Request, scheduler: Scheduler) -> dict[str, Any]:
    held = request.state is RequestState.RUNNING
    return {
        "id": request.id,
        "state": request.state.value,
        "prompt_tokens": request.prompt_tokens,
        "generated_tokens": request.generated,
        "max_new_tokens": request.max_new_tokens,
        "computed_tokens": request.computed,
        "found_tokens": request.reused + request.loaded,
        "preemptions": request.preemptions,
        "blocks": len(scheduler.memory.holding(request.id).blocks()) if held else 0,
    }


def _runs(owners: Array, kinds: Array) -> list[dict[str, Any]]:
    """Neighbouring cells of one class and one request, as one."""
    if not len(kinds):
        return []
    changes = np.flatnonzero((owners[1:] != owners[:-1]) | (kinds[1:] != kinds[:-1])) + 1
    firsts = [0, *changes.tolist()]
    ends = [*firsts[1:], len(kinds)]
    return [
        {
            "first": first,
            "count": end - first,
            "class": LEDGER_CLASSES[kinds[first]],
            "request": int(owners[first]) - 1 if owners[first] else None,
        }
        for first, end in zip(firsts, ends, strict=True)
    ]
