"""Which requests are refused as soon as they come."""

from __future__ import annotations

from kvhouse.core.memory import KVMemory
from kvhouse.core.request import Request
from kvhouse.errors import RequestRejected


def refuse_the_impossible(request: Request, memory: KVMemory, max_length: int) -> None:
    """Refuse a request that could never finish.

    Raises:
        RequestRejected: With the reason in tokens and bytes.
    """
    prompt, new = request.prompt_tokens, request.max_new_tokens
    if prompt < 1 or new < 1:
        raise RequestRejected(
            f"a request needs at least 1 prompt token and 1 new token, not {prompt} and {new}"
        )
    if prompt + new > max_length:
        raise RequestRejected(
            f"{prompt:,} prompt + {new:,} new tokens exceed the maximum length of "
            f"{max_length:,} tokens: shorten the request or raise max_length"
        )
    if memory.fits_all:
        return
    needed = memory.most_blocks(request)
    room = memory.pool.largest
    if needed > room:
        block_bytes = memory.layout.block_bytes
        runs = f", at most {room:,} of them in one run" if room < memory.total_blocks else ""
        raise RequestRejected(
            f"{prompt:,} prompt + {new:,} new tokens need {needed * block_bytes:,} bytes of KV "
            f"({_blocks(needed)}, {memory.policy}), the pool has "
            f"{memory.total_blocks * block_bytes:,} bytes "
            f"({_blocks(memory.total_blocks)}){runs}"
        )


def _blocks(number: int) -> str:
    return "1 block" if number == 1 else f"{number:,} blocks"
