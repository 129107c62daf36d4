"""Steps in a row as numbers: what a leap took, without its plans."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvhouse.core.request import Request

#: A row without its tables: first position, tokens, and whether it samples.
PlainRow = tuple[int, int, bool]


@dataclass(slots=True)
class Stretch:
    """Steps in a row of which only the first is more than its rows going on.

    In every later step the same requests decode, and beside them one prompt may go on by the
    same number of tokens.

    One object serves for all stretches of a leaper: what is to be kept must be copied.

    Attributes:
        index: Number of the first step.
        most: Steps that may be taken before the next event, at least 1.
        decoding: Rows of one token in the first step; all of them sample.
        before: Tokens in the pool that these have together before the first step.
        later: Rows of one token in every later step; all of them sample.
        chunk: Tokens of a prompt in every later step; it samples nothing. 0 where none goes on.
        chunk_first: Position of the first of them in the second step.
        idle: Tokens in the pool of requests that take no part in the later steps.
        rows: The first step's other rows.
        prompts: The requests of these rows.
        tokens: Tokens of the first step.
        written: Tokens in the pool after the first step; each later one adds ``later`` and
            ``chunk``.
        admitted: Who got memory in the first step.
        running: Requests that hold memory.
        waiting: Requests in the queue.
        free: Blocks that nobody holds in the first step.
        room: Tokens that running requests hold blocks for in the first step, as far as they may
            come to fill them.
        begun: For each later step that was taken, the requests that take a block in each group.
        excess: Later steps in which requests take their last blocks, and the tokens of these that
            will never be filled.
        cached: For each step, free blocks with content; empty where nothing is shared.
        free_slots: Slots that nobody holds.
        external: Free blocks that are of no use to the head of the queue.
        shared: Blocks that several requests hold.
        saved: The further holders of these.
        in_shared: Bytes that requests need in shared blocks, counted once for each holder.
        seen: For each length of a window, what the decoding rows still need of their tokens before
            the first step, and what each later step adds; empty where there are no windows.
        passed: Bytes of tokens that layers with windows do not need any more, in the first step.
        passing: What each later step adds to these.
        short: Bytes by which tables of layers with windows hold less than ``room`` says.
        unheld: For each step, blocks that nobody holds; empty where ``begun`` tells.
    """

    index: int = 0
    most: int = 1
    decoding: int = 0
    before: int = 0
    later: int = 0
    chunk: int = 0
    chunk_first: int = 0
    idle: int = 0
    rows: list[PlainRow] = field(default_factory=list)
    prompts: list[Request] = field(default_factory=list)
    tokens: int = 0
    written: int = 0
    admitted: list[Request] = field(default_factory=list)
    running: int = 0
    waiting: int = 0
    free: int = 0
    room: int = 0
    begun: list[int] = field(default_factory=list)
    excess: list[tuple[int, int]] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    free_slots: int = 0
    external: int = 0
    shared: int = 0
    saved: int = 0
    in_shared: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)
    passed: int = 0
    passing: int = 0
    short: int = 0
    unheld: list[int] = field(default_factory=list)
