"""One request of a trace."""

from __future__ import annotations

from typing import NamedTuple

#: Tokens behind one hash id of a Mooncake trace.
MOONCAKE_BLOCK = 512
#: More tokens than any request can have; a larger number is a damaged line.
MOST_TOKENS = 10**9
#: Two thousand years in seconds; a later arrival is a mistake.
MOST_SECONDS = 10**11


class TraceRequest(NamedTuple):
    """One request of a trace.

    Attributes:
        arrival: Seconds after the trace's time 0.
        prompt_tokens: Length of the prompt.
        output_tokens: Length of the output, at least 1.
        hash_ids: Ids of the blocks of ``hash_block`` tokens that the request begins with; equal ids
            mean equal tokens from the prompt's start on. ``named_tokens`` says how far they reach.
            Empty where unknown.
        hash_block: Tokens behind one hash id.
        prefix_id: Names a text that the prompt begins with, if any.
        prefix_tokens: So many of the prompt's first tokens are the first tokens of that text. Two
            requests with one ``prefix_id`` share the smaller of their ``prefix_tokens``.
        tenant: Whose request it is; prefixes are not shared between tenants.
        priority: Lower is served earlier.
        cached_tokens: Prompt tokens that the server which wrote the trace had in its cache, as far
            as it says: an observation, and nothing that a replay follows.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    hash_block: int = MOONCAKE_BLOCK
    prefix_id: str | None = None
    prefix_tokens: int = 0
    tenant: str | None = None
    priority: int = 0
    cached_tokens: int = 0

    @property
    def prompt_blocks(self) -> int:
        """Blocks of ``hash_block`` tokens that the prompt touches, a partial one included."""
        return -(-self.prompt_tokens // self.hash_block)

    @property
    def named_tokens(self) -> int:
        """How many tokens, from the start on, the hash ids name.

        The id of the prompt's last block names the tokens of that block that are the prompt's, as
        Mooncake publishes it. Only where further ids follow do they name the output as well.
        """
        reach = len(self.hash_ids) * self.hash_block
        if len(self.hash_ids) <= self.prompt_blocks:
            return min(reach, self.prompt_tokens)
        return min(reach, self.prompt_tokens + self.output_tokens)
