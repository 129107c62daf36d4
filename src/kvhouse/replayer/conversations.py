"""Conversations whose turns repeat what was said before, so that a prefix cache can reuse it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvhouse.errors import TraceError
from kvhouse.replayer.gaps import arrivals, exponential
from kvhouse.replayer.lengths import Distribution, PairSource
from kvhouse.replayer.randomness import Uniforms
from kvhouse.replayer.trace_request import TraceRequest

#: After so many turns in a row that do not fit the context, none will.
_MOST_BARREN = 10_000

#: Blocks of a conversation that are named; each takes tens of bytes for as long as it is live.
_MOST_IDS = 2**20


@dataclass(slots=True)
class _Conversation:
    """What has been said so far.

    Attributes:
        tokens: Length of it all, the system prompt included.
        ids: One for each whole block of it.
        left: Turns to come.
        tenant: Whose conversation it is.
    """

    tokens: int
    ids: list[int]
    left: int
    tenant: str | None


@dataclass(order=True, slots=True)
class _Turn:
    time: int
    number: int
    conversation: _Conversation = field(compare=False)


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations that begin as a Poisson process.

    A turn's prompt is the shared system prompt, all earlier turns with their answers, and the new
    message. Hash ids name every whole block of prompt and output: turns of one conversation share
    those of what was said before, and conversations with one system prompt share those in it.

    Attributes:
        rate: Conversations that begin in a second.
        pairs: Draws the lengths of a turn's message and its answer.
        turns: Turns of a conversation.
        pause: Mean seconds from a turn's arrival to the next one's, exponential.
        system: Tokens of a system prompt.
        systems: How many system prompts there are; each conversation has one, each as likely.
        block: Tokens behind one hash id.
        context: A conversation ends before the turn that would be longer, prompt and output.
        tenants: How many tenants there are, each as likely to begin a conversation; 0 for none.
        seed: Decides the draws.
    """

    rate: float
    pairs: PairSource
    turns: Distribution
    pause: float
    system: int
    systems: int
    block: int
    context: int
    tenants: int
    seed: int

    def endless(self) -> Iterator[tuple[int, TraceRequest]]:
        """Times in nanoseconds and the requests that arrive then, without end."""
        pauses = Uniforms(self.seed, "pause")
        self._refuse_endless(self.system)
        whole = self.system // self.block  # blocks that lie in a system prompt
        fresh = self.systems * whole  # the next id that nobody has
        begins = self._begin(whole)
        coming = next(begins)
        live: list[_Turn] = []
        barren = 0
        while True:
            if not live or coming.time <= live[0].time:
                turn, coming = coming, next(begins)
            else:
                turn = heapq.heappop(live)
            said = turn.conversation
            message, answer = self.pairs()
            prompt = said.tokens + message
            if prompt + answer > self.context:
                barren += 1
                if barren == _MOST_BARREN:
                    raise TraceError(
                        f"context={self.context}: {barren:,} turns in a row are longer than that"
                    )
                continue
            barren = 0
            said.tokens = prompt + answer
            new = said.tokens // self.block - len(said.ids)
            self._refuse_endless(said.tokens)
            said.ids.extend(range(fresh, fresh + new))
            fresh += new
            ids = tuple(said.ids)
            yield (
                turn.time,
                TraceRequest(turn.time / 1e9, prompt, answer, ids, self.block, tenant=said.tenant),
            )
            said.left -= 1
            if said.left:
                turn.time += round(exponential(pauses, self.pause) * 1e9)
                heapq.heappush(live, turn)

    def _refuse_endless(self, tokens: int) -> None:
        """Refuse a conversation whose ids would fill the memory."""
        if tokens // self.block > _MOST_IDS:
            raise TraceError(
                f"a conversation of {tokens:,} tokens has over {_MOST_IDS:,} blocks of "
                f"{self.block:,}: give a larger block, or a smaller context"
            )

    def _begin(self, whole: int) -> Iterator[_Turn]:
        lengths, prompts = Uniforms(self.seed, "turns"), Uniforms(self.seed, "system")
        owners = Uniforms(self.seed, "tenant")
        for number, time in enumerate(arrivals(self.rate, 1, self.seed)):
            first = prompts.below(self.systems) * whole
            ids = list(range(first, first + whole))
            tenant = f"tenant-{owners.below(self.tenants) + 1}" if self.tenants else None
            turns = self.turns.at(lengths.draw_open())
            yield _Turn(time, number, _Conversation(self.system, ids, turns, tenant))
