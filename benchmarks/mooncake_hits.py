"""How many blocks of a Mooncake trace's prompts a cache has already.

    python benchmarks/mooncake_hits.py FILE       # mooncake conversation_trace.jsonl

Every prompt block with an id, the last partial one included, counts as asked for, one request after
the other in the order of arrival; outputs are left out. The cache is ``CachedPool``, the pool that
replay and the engine share prefixes with, given the blocks back in two orders: as they were asked
for, which is plain LRU, and as the house does, the tail of a request first, so that the head of a
prompt, without which its tail is of no use, is forgotten last.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from kvhouse.core.cached_pool import CachedPool, Content
from kvhouse.replayer import TraceRequest, read_trace

CACHES = (10_000, 30_000, 60_000)

Prompt = Sequence[int]


def prompts_of(requests: Iterable[TraceRequest]) -> list[Prompt]:
    """The ids of each prompt's blocks."""
    return [request.hash_ids[: request.prompt_blocks] for request in requests]


def hit_rate(prompts: Sequence[Prompt], blocks: int | None, *, tail_first: bool = False) -> float:
    """Share of the blocks asked for that the cache had.

    Args:
        prompts: Ids, in the order in which they are asked for.
        blocks: Size of the cache; None for one that forgets nothing.
        tail_first: Whether a prompt's blocks are given back together when it is done, its tail
            first; otherwise each at once.
    """
    asked = sum(map(len, prompts))
    pool = CachedPool(asked if blocks is None else blocks, 1)
    hits = sum(_serve(pool, prompt, tail_first=tail_first) for prompt in prompts)
    return hits / asked if asked else 0.0


def _serve(pool: CachedPool, prompt: Prompt, *, tail_first: bool) -> int:
    """Take up or take each block of one prompt; returns how many there were already."""
    hits, held = 0, []
    for name in prompt:
        content = Content(0, name)
        block = pool.find(content)
        if block is not None:
            hits += 1
            pool.share([block])
        else:
            block = _take(pool, content)
        if tail_first:
            held.append(block)
        else:
            pool.give_back([block])
    pool.give_back(held)
    return hits


def _take(pool: CachedPool, content: Content) -> int:
    taken = pool.take(1)
    if taken is None:
        raise SystemExit("a prompt has more blocks than the cache: take a larger one")
    pool.seal(taken[0], content)
    return taken[0]


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace", help="a Mooncake JSONL file")
    prompts = prompts_of(read_trace(parser.parse_args().trace).requests)
    print(f"{len(prompts):,} prompts, {sum(map(len, prompts)):,} blocks")
    print(f"{'cache':>10}  plain LRU  tail first")
    for blocks in (None, *CACHES):
        plain, house = (hit_rate(prompts, blocks, tail_first=order) for order in (False, True))
        size = "infinite" if blocks is None else f"{blocks:,}"
        print(f"{size:>10}  {plain:9.4f}  {house:10.4f}")


if __name__ == "__main__":
    main()
