"""The house's invariants in one function, called by tests and in debugging after every step."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvhouse.core.memory import KVMemory
from kvhouse.core.policy import PAGED
from kvhouse.core.request import Request, RequestState

if TYPE_CHECKING:
    from kvhouse.core.scheduler import Scheduler


class InvariantError(AssertionError):
    """The core contradicts itself: a bug in kvhouse, never the user's doing."""


def check(scheduler: Scheduler) -> None:
    """Check conservation, order and placement.

    Raises:
        InvariantError: The first rule that is broken.
    """
    _check_blocks(scheduler.memory)
    _check_queues(scheduler)
    for request in scheduler.running:
        _check_running(request, scheduler.memory)
    _check_ledger(scheduler)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(rule)


def _check_blocks(memory: KVMemory) -> None:
    held = [block for holder in memory.holders for block in memory.holding(holder).blocks()]
    free = memory.pool.free_ids()
    _require(
        sorted(held + free) == list(range(memory.total_blocks)),
        "every block is free or in exactly one table",
    )
    _require(len(free) == memory.free_blocks, "the count of free blocks is the number of free ids")
    slots = [memory.holding(holder).slot for holder in memory.holders]
    taken = [slot for slot in slots if slot is not None]
    _require(
        sorted(taken + memory.slots.free_ids()) == list(range(memory.size.slots)),
        "every slot is free or held by one request",
    )
    _require(
        len(taken) == (len(slots) if memory.layout.slot_bytes else 0),
        "where there is a state, each request has a slot",
    )
    if memory.policy != PAGED:
        for holder in memory.holders:
            blocks = sorted(memory.holding(holder).blocks())
            steps = {after - before for before, after in pairwise(blocks)}
            _require(steps <= {1}, f"the blocks of contiguous request {holder} are one run")


def _check_queues(scheduler: Scheduler) -> None:
    running = [request.id for request in scheduler.running]
    waiting = [request.id for request in scheduler.waiting]
    _require(
        set(scheduler.memory.holders) == set(running), "exactly the running requests hold memory"
    )
    order = running + waiting
    _require(order == sorted(set(order)), "requests stand in the order of their submission")
    for request in scheduler.waiting:
        _require(request.state is RequestState.WAITING, f"request {request.id} is waiting")
        _require(
            request.computed == request.in_flight == 0,
            f"waiting request {request.id} keeps nothing",
        )


def _check_running(request: Request, memory: KVMemory) -> None:
    written = request.computed + request.in_flight
    _require(request.state is RequestState.RUNNING, f"request {request.id} is running")
    _require(written <= request.known, f"request {request.id} computes only known tokens")
    _require(
        request.generated < request.max_new_tokens, f"request {request.id} has tokens to generate"
    )
    for group, table in zip(memory.layout.groups, memory.holding(request.id).tables, strict=True):
        oldest = group.first_block(request.computed)
        _require(
            table.first <= oldest and group.end_block(written) <= table.end,
            f"request {request.id} writes and reads only its own blocks",
        )


def _check_ledger(scheduler: Scheduler) -> None:
    ledger = scheduler.ledger()
    classes = ledger.to_dict()
    total = classes.pop("total")
    _require(min(classes.values()) >= 0, "no class of the ledger is negative")
    _require(sum(classes.values()) == total, "the ledger's classes sum to the pool")
    if not scheduler.has_work:
        _require(ledger.free == total, "everything is free when idle")
