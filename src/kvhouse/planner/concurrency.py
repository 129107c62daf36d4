"""How many identical requests a pool admits: the allocator's answer in closed form."""

from __future__ import annotations

from kvhouse.core.policy import DEFAULT_WATERMARK, Placement
from kvhouse.layout import PoolSize


def requests_that_fit(
    placement: Placement,
    size: PoolSize,
    tokens: int,
    new_tokens: int,
    watermark: float = DEFAULT_WATERMARK,
) -> int:
    """Requests of ``tokens`` known tokens each that are admitted before the first refusal.

    Args:
        placement: The policy, the layout and the limits.
        size: The pool.
        tokens: Tokens that each request holds.
        new_tokens: How many of them it generated; what ``contiguous-pow2`` rounds up.
        watermark: Share of the pool that ``paged`` keeps free; it does not bind the first.

    Raises:
        KvhouseError: The watermark is out of range.
    """
    needed = placement.blocks_to_admit(tokens, tokens - new_tokens, new_tokens)
    by_slots = size.slots if placement.layout.slot_bytes else size.blocks
    if not needed:  # nothing but states
        return by_slots
    beside_others = (size.blocks - placement.held_back(size.blocks, watermark)) // needed
    return min(by_slots, max(beside_others, int(needed <= size.blocks)))
