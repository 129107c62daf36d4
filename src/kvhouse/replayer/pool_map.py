"""Who holds which block at one moment, read from the allocator's own tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.core.memory import KVMemory
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler
from kvhouse.layout import LayerGroup

USED, SHARED, RESERVED, INTERNAL, EXTERNAL, CACHED, FREE = range(len(LEDGER_CLASSES))
#: How the blocks of a table follow each other: passed, needed, to be filled, never to be filled.
_ALONG_A_TABLE = np.array((INTERNAL, USED, RESERVED, INTERNAL), dtype=np.uint8)

Array = np.ndarray[Any, Any]
#: Tokens that a request has in the pool, those of the step under way included.
Written = Callable[[Request], int]


@dataclass(frozen=True, slots=True)
class Sight:
    """The pool at one moment. A block counts by what it is to its request.

    ``used`` blocks hold at least one token that is needed, ``reserved`` ones none yet, and
    ``internal`` ones never will or no longer do; the ledger splits bytes within blocks as well.

    Attributes:
        owners: For each block that is looked at, one more than its request's id; 0 for nobody.
        kinds: The place of its class in ``LEDGER_CLASSES``.
        counts: Blocks of the whole pool by class, in that order.
    """

    owners: Array
    kinds: Array
    counts: Array


def written(request: Request) -> int:
    """Tokens that a request has in the pool after the step under way."""
    return request.computed + request.in_flight


def look_at(scheduler: Scheduler, blocks: Array, written: Written = written) -> Sight:
    """Look at some blocks of a scheduler's pool, and count all.

    Args:
        scheduler: Between planning a step and applying it, or without work.
        blocks: The ids of the blocks to look at.
        written: Tokens of a request, where its own counters stand still.
    """
    memory = scheduler.memory
    kinds = np.full(memory.total_blocks, FREE, dtype=np.uint8)
    owners = np.zeros(memory.total_blocks, dtype=np.uint32)
    head = scheduler.waiting.head
    if head and memory.pool.unusable(memory.blocks_to_admit(head)):
        kinds[:] = EXTERNAL  # where it is scattered, all that is free is
    if memory.sharing and memory.sharing.pool.cached_blocks:
        kinds[memory.sharing.pool.content_ids()] = CACHED  # what is held is painted over
    _paint(memory, scheduler.running, written, kinds, owners)
    if memory.sharing and any(memory.sharing.pool.shared_blocks):
        kinds[memory.sharing.pool.shared_ids()] = SHARED
    counts = np.bincount(kinds, minlength=len(LEDGER_CLASSES))
    return Sight(owners[blocks], kinds[blocks], counts)


def _paint(
    memory: KVMemory, running: list[Request], written: Written, kinds: Array, owners: Array
) -> None:
    """Paint what requests hold."""
    ids: list[list[int]] = []
    holders: list[int] = []
    parts: list[tuple[int, int, int, int]] = []
    for request in running:
        tokens = written(request)
        for table in memory.holding(request.id).tables:
            ids.append(table.ids)
            holders.append(request.id + 1)
            parts.append(_parts(table.group, table.first, len(table.ids), request, tokens))
    lengths = np.array(parts, dtype=np.int64).reshape(-1, len(_ALONG_A_TABLE))
    held = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
    kinds[held] = np.repeat(np.tile(_ALONG_A_TABLE, len(parts)), lengths.ravel())
    owners[held] = np.repeat(np.array(holders, dtype=np.uint32), lengths.sum(axis=1))


def _parts(
    group: LayerGroup, first: int, held: int, request: Request, tokens: int
) -> tuple[int, int, int, int]:
    """How many of a table's blocks are passed, needed, to be filled, and never to be filled."""
    if group.reach.kind == "another":
        return 0, held, 0, 0
    size = group.block_size
    oldest = group.reach.first(request.computed)
    # At the start of a chunk nothing is needed, not even in a block that is begun.
    end = -(-tokens // size) if oldest < tokens else oldest // size
    needed = min(max(end - first, 0), held)
    fillable = min(max(-(-request.most_slots // size) - first, needed), held)
    passed = min(max(oldest // size - first, 0), needed)
    return passed, needed - passed, fillable - needed, held - fillable
