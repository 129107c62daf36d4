"""The house's invariants in one function, called by tests and in debugging after every step."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from kvhouse.core.memory import KVMemory
from kvhouse.core.policy import PAGED
from kvhouse.core.queue import get_order
from kvhouse.core.request import Request, RequestState
from kvhouse.core.tier import Tier

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
    if scheduler.memory.tiers:
        for tier in scheduler.memory.tiers:
            _check_tier(tier, scheduler.under_way)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(rule)


def _check_blocks(memory: KVMemory) -> None:
    held = Counter(block for holder in memory.holders for block in memory.holding(holder).blocks())
    free = memory.pool.free_ids()
    _require(
        sorted([*held, *free]) == list(range(memory.total_blocks)),
        "every block is either free or in a table",
    )
    _require(len(free) == memory.free_blocks, "the count of free blocks is the number of free ids")
    _check_references(memory, held)
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


def _check_references(memory: KVMemory, held: Counter[int]) -> None:
    several = [block for block, holders in held.items() if holders > 1]
    if not memory.sharing:
        _require(not several, "no block is in two tables")
        return
    pool = memory.sharing.pool
    _require(
        all(pool.holders(block) == holders for block, holders in held.items()),
        "a block's holders are the tables that it stands in",
    )
    _require(all(pool.content(block) for block in several), "a shared block is sealed")
    contents = [(block, pool.content(block)) for block in range(memory.total_blocks)]
    _require(
        all(pool.find(content) == block for block, content in contents if content),
        "what a block holds is found there",
    )
    _require(
        pool.cached_blocks == sum(pool.content(block) is not None for block in pool.free_ids()),
        "the count of cached blocks is the number of free blocks with content",
    )
    _require(
        (sum(pool.shared_blocks), sum(pool.saved_blocks))
        == (len(several), sum(held[block] - 1 for block in several)),
        "the counts of shared blocks are those of the tables",
    )


def _check_queues(scheduler: Scheduler) -> None:
    running = [request.id for request in scheduler.running]
    waiting = [request.id for request in scheduler.waiting]
    _require(
        set(scheduler.memory.holders) == set(running), "exactly the running requests hold memory"
    )
    _require(not set(running) & set(waiting), "no request both runs and waits")
    keys = [get_order(scheduler.config.order)(request) for request in scheduler.running]
    _require(keys == sorted(keys), "running requests stand in their order")
    # What could not be loaded sends a request back past others.
    passed = any(request.setbacks for request in scheduler.waiting)
    if scheduler.config.order == "fcfs" and not passed:
        _require(running + waiting == sorted(running + waiting), "the older run before the younger")
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
    for table in memory.holding(request.id).tables:
        oldest = table.group.first_block(request.computed)
        _require(
            table.first <= oldest and table.group.end_block(written) <= table.end,
            f"request {request.id} writes and reads only its own blocks",
        )


def _check_tier(tier: Tier, under_way: bool) -> None:
    name = tier.config.name
    contents = dict(tier)
    _require(
        sorted([*contents.values(), *tier.free_slots]) == list(range(tier.capacity)),
        f"every slot of tier {name} is free or holds one content",
    )
    _require(
        len(tier.ranked) == len(contents) and set(tier.ranked) == set(contents),
        f"the replacement of tier {name} ranks what is there",
    )
    if not under_way:
        done = tier.counters
        _require(not tier.pinned, f"between steps tier {name} has no pins")
        _require(
            done.stored - done.evicted - done.dropped == len(contents),
            f"what tier {name} holds was stored and neither evicted nor dropped",
        )


def _check_ledger(scheduler: Scheduler) -> None:
    ledger = scheduler.ledger()
    classes = ledger.to_dict()
    total, _ = classes.pop("total"), classes.pop("saved")
    _require(min(classes.values()) >= 0, "no class of the ledger is negative")
    _require(sum(classes.values()) == total, "the ledger's classes sum to the pool")
    if not scheduler.has_work:
        _require(ledger.free + ledger.cached == total, "everything is free when idle")
