"""How many identical requests a pool admits: the allocator's answer in closed form."""

from __future__ import annotations

from kvhouse.core.memory import DEFAULT_WATERMARK, POLICIES, watermark_blocks
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout


def requests_that_fit(
    layout: KVLayout,
    blocks: int,
    tokens: int,
    policy: str,
    max_length: int,
    watermark: float = DEFAULT_WATERMARK,
) -> int:
    """Requests of ``tokens`` known tokens each that are admitted before the first refusal.

    Args:
        layout: Tokens and bytes of a block.
        blocks: Blocks in the pool.
        tokens: Tokens that each request holds.
        policy: ``paged`` or ``contiguous``.
        max_length: What ``contiguous`` reserves for each request, in tokens.
        watermark: Share of the pool that ``paged`` keeps free; it does not bind the first.

    Raises:
        KvhouseError: No such policy.
    """
    if policy == "contiguous":
        return blocks // layout.blocks_for(max_length)
    if policy == "paged":
        needed = layout.blocks_for(tokens)
        beside_others = (blocks - watermark_blocks(blocks, watermark)) // needed
        return max(beside_others, int(needed <= blocks))
    raise KvhouseError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
