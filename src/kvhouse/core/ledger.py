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
    layout = memory.layout
    used = reserved = 0
    for request in running:
        tables = memory.holding(request.id).tables
        used += layout.slot_bytes
        for group, table in zip(layout.groups, tables, strict=True):
            filled, fillable = _split(group, table, request)
            used += filled
            reserved += fillable
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


def _split(group: LayerGroup, table: GroupTable, request: Request) -> tuple[int, int]:
    """Bytes of a table that hold what is needed, and those that may come to hold it."""
    if group.reach.kind == "another":
        return group.bytes_of(group.other_tokens), 0
    written = request.computed + request.in_flight
    oldest = group.reach.first(request.computed)
    end = min(table.end * group.block_size, request.most_slots)
    filled = group.bytes_of(written) - group.bytes_of(oldest)
    return filled, group.bytes_of(end) - group.bytes_of(written)
