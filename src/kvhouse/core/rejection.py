"""Which requests are refused as soon as they come, and how long one may be that is not."""

from __future__ import annotations

from bisect import bisect_left

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
            f"{max_length:,} tokens: shorten the request or raise the maximum length"
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


def most_new_tokens(prompt: int, memory: KVMemory, max_length: int) -> int:
    """The most new tokens with which a request is not refused; 0 where any number would be.

    Args:
        prompt: Tokens of its prompt, at least 1.
        memory: The pool and how it is handed out.
        max_length: The longest request allowed, in tokens.
    """
    most = max(0, max_length - prompt)
    if memory.fits_all:
        return most
    room = memory.pool.largest
    # More tokens never need fewer blocks, so those that fit come first.
    return bisect_left(
        range(1, most + 1),
        x=True,
        key=lambda new: memory.most_blocks(Request(0, prompt, new)) > room,
    )


def longest_request(memory: KVMemory, max_length: int) -> int:
    """The most tokens, prompt and output, that a request may have without being refused.

    With one new token: no policy then sets aside more than the request can use.
    """
    if memory.fits_all:
        return max_length
    prompts = bisect_left(
        range(1, max_length),
        x=True,
        key=lambda prompt: not most_new_tokens(prompt, memory, prompt + 1),
    )
    return prompts + 1 if prompts else 0


def _blocks(number: int) -> str:
    return "1 block" if number == 1 else f"{number:,} blocks"
