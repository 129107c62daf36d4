"""Every byte of the pool in exactly one class, at any moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from kvhouse.core.holding import GroupTable
from kvhouse.core.memory import KVMemory
from kvhouse.core.request import Request
from kvhouse.layout import LayerGroup


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes of the pool by class; the classes below ``total`` sum to it exactly.

    The split follows figure 2 of the PagedAttention paper (arXiv 2309.06180).

    Attributes:
        total: The pool.
        used: What layers still need of computed tokens, the step under way included, and states,
            in memory that one request holds alone.
        shared: Blocks that several requests hold, each counted once.
        reserved: Held space that its request may still fill.
        internal: Held space that its request can never fill, or has filled with tokens that no
            layer needs any more: tails of blocks and reservations, padding, what has passed out
            of a window.
        external: Free and enough for the request at the head of the queue, but in runs too
            short for it: external fragmentation.
        cached: Free, with content that a later request may still take up.
        free: Free otherwise.
        saved: What the holders of shared blocks would take beside them if they shared nothing;
            no part of the pool.
    """

    total: int
    used: int
    shared: int
    reserved: int
    internal: int
    external: int
    cached: int
    free: int
    saved: int

    def to_dict(self) -> dict[str, int]:
        """The classes by name, in bytes."""
        return asdict(self)


#: The classes that sum to a ledger's total, in the order in which they are shown.
LEDGER_CLASSES = ("used", "shared", "reserved", "internal", "external", "cached", "free")


def account(memory: KVMemory, running: Iterable[Request], head: Request | None) -> Ledger:
    """Account for every byte of ``memory``.

    Args:
        memory: The pool and what requests hold of it.
        running: The requests that hold memory.
        head: The request at the head of the waiting queue, if there is one.
    """
    layout, running = memory.layout, list(running)
    used, reserved = len(running) * layout.slot_bytes, 0
    for index, kind in layout.kinds:
        tables = [memory.holding(request.id).tables[index] for request in running]
        filled, fillable = _entries(kind, tables, running)
        used += filled * kind.entry_bytes
        reserved += fillable * kind.entry_bytes
    for number in range(len(layout.groups)):
        used -= _in_shared_blocks(memory, number, running)
    unusable = memory.pool.unusable(memory.blocks_to_admit(head)) if head else 0
    block = layout.block_bytes
    cached, shared, saved = (blocks * block for blocks in _shared_blocks(memory))
    total, free = memory.total_bytes, _free_bytes(memory) - cached
    return Ledger(
        total=total,
        used=used,
        shared=shared,
        reserved=reserved,
        internal=total - free - cached - used - shared - reserved,
        external=unusable * block,
        cached=cached,
        free=free - unusable * block,
        saved=saved,
    )


def _shared_blocks(memory: KVMemory) -> tuple[int, int, int]:
    """Blocks that are cached, that are shared, and that sharing saves."""
    if not memory.sharing:
        return 0, 0, 0
    pool = memory.sharing.pool
    return pool.cached_blocks, sum(pool.shared_blocks), sum(pool.saved_blocks)


def _in_shared_blocks(memory: KVMemory, number: int, running: list[Request]) -> int:
    """Bytes that requests need of one group and that lie in blocks which others hold too."""
    if not memory.sharing or not memory.sharing.pool.shared_blocks[number]:
        return 0
    group, pool = memory.layout.groups[number], memory.sharing.pool
    if not group.reach.tokens:  # shared blocks are full, and all of it is needed
        return (pool.shared_blocks[number] + pool.saved_blocks[number]) * group.layer_bytes
    size, needed = group.block_size, 0
    for request in running:
        oldest = group.reach.first(request.computed)
        table = memory.holding(request.id).tables[number]
        for index, block in enumerate(table.ids, table.first):
            if pool.holders(block) > 1:
                needed += min(size, max(0, (index + 1) * size - oldest))
    return group.bytes_of(needed)


def _free_bytes(memory: KVMemory) -> int:
    layout = memory.layout
    return memory.free_blocks * layout.block_bytes + memory.slots.free_blocks * layout.slot_bytes


def _entries(kind: LayerGroup, tables: list[GroupTable], running: list[Request]) -> tuple[int, int]:
    """Entries of tables that hold what is needed, and those that may come to hold it."""
    if kind.reach.kind == "another":
        return len(running) * (kind.other_tokens // kind.stride), 0
    stride, size, first = kind.stride, kind.block_size, kind.reach.first
    filled = fillable = oldest = 0
    for table, request in zip(tables, running, strict=True):
        written = (request.computed + request.in_flight) // stride
        if kind.reach.tokens:
            oldest = first(request.computed) // stride
        end = min((table.first + len(table.ids)) * size, request.most_slots) // stride
        filled += written - oldest
        fillable += end - written
    return filled, fillable
