"""Every byte of the pool in exactly one class, at any moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from kvhouse.core.memory import KVMemory
from kvhouse.core.request import Request


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes of the pool by class; the classes below ``total`` sum to it exactly.

    The split follows figure 2 of the PagedAttention paper (arXiv 2309.06180).

    Attributes:
        total: The pool.
        used: Slots whose keys and values are computed, the step under way included.
        reserved: Held slots that their request may still fill.
        internal: Held slots that their request can never fill: tails of blocks and reservations.
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
        memory: The pool and its block tables.
        running: The requests that hold blocks.
        head: The request at the head of the waiting queue, if there is one.
    """
    used = reserved = internal = 0
    for request in running:
        slots = len(memory.table(request.id)) * memory.layout.block_size
        written = request.computed + request.in_flight
        fillable = min(slots, request.most_slots)
        used += written
        reserved += fillable - written
        internal += slots - fillable
    unusable = memory.pool.unusable(memory.blocks_to_admit(head.known)) if head else 0
    token_bytes, block_bytes = memory.layout.bytes_per_token, memory.layout.block_bytes
    return Ledger(
        total=memory.total_bytes,
        used=used * token_bytes,
        reserved=reserved * token_bytes,
        internal=internal * token_bytes,
        external=unusable * block_bytes,
        free=(memory.free_blocks - unusable) * block_bytes,
    )
