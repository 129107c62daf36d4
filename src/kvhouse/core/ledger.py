"""Every byte of the pool in exactly one class, at any moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from kvhouse.core.memory import GroupTable, KVMemory
from kvhouse.core.request import Request
from kvhouse.layout import LayerGroup


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes of the pool by class; the classes below ``total`` sum to it exactly.

    The split follows figure 2 of the PagedAttention paper (arXiv 2309.06180).

    Attributes:
        total: The pool.
        used: What layers still need of computed tokens, the step under way included, and states.
        reserved: Held space that its request may still fill.
        internal: Held space that its request can never fill, or has filled with tokens that no
            layer needs any more: tails of blocks and reservations, padding, what has passed out
            of a window.
        external: Free and enough for the request at the head of the queue, but in runs too
            short for it: external fragmentation.
        free: Free otherwise.
    """

    total: int
    used: int
    reserved: int
    internal: int
    external: int
    free: int

    def to_dict(self) -> dict[str, int]:
        """The classes by name, in bytes."""
        return asdict(self)


#: The classes that sum to a ledger's total, in the order in which they are shown.
LEDGER_CLASSES = ("used", "reserved", "internal", "external", "free")


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
    unusable = memory.pool.unusable(memory.blocks_to_admit(head)) if head else 0
    total, free = memory.total_bytes, _free_bytes(memory)
    external = unusable * layout.block_bytes
    return Ledger(
        total=total,
        used=used,
        reserved=reserved,
        internal=total - free - used - reserved,
        external=external,
        free=free - external,
    )


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
