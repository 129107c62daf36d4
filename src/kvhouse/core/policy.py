"""Placement policies: how much memory a request is given when it is admitted.

The contiguous ones are those of engines before paging, as Kwon et al. 2023 (arXiv 2309.06180,
section 6.1) compare them under the name of Orca: one run of memory per request, for the longest
length allowed (``max``), for the output rounded up to a power of two (``pow2``) or, with knowledge
that no engine has, for exactly the length that it will reach (``oracle``).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout

PAGED = "paged"
CONTIGUOUS_MAX = "contiguous-max"
CONTIGUOUS_POW2 = "contiguous-pow2"
CONTIGUOUS_ORACLE = "contiguous-oracle"

#: Every placement policy, the most wasteful first.
POLICIES = (CONTIGUOUS_MAX, CONTIGUOUS_POW2, CONTIGUOUS_ORACLE, PAGED)

#: How a contiguous pool looks for a run: the first or the shortest that is long enough, or by
#: the buddy system (Knowlton 1965), as Kwon et al. assume for Orca.
FIRST_FIT, BEST_FIT, BUDDY = FITS = ("first", "best", "buddy")

#: Short for the policy that is meant where nothing else is said.
_SHORT = {"contiguous": CONTIGUOUS_MAX}

#: The most tokens that a step computes where nothing else is said.
DEFAULT_TOKEN_BUDGET = 2048

#: Share of the pool that admission leaves free so that running requests can grow.
DEFAULT_WATERMARK = 0.05


def get_policy(name: str) -> str:
    """The policy of that name; ``contiguous`` is short for ``contiguous-max``.

    Raises:
        KvhouseError: No such policy; the message lists those there are.
    """
    policy = _SHORT.get(name, name)
    if policy not in POLICIES:
        raise KvhouseError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}")
    return policy


def get_fit(name: str) -> str:
    """The fit of that name.

    Raises:
        KvhouseError: No such fit; the message lists those there are.
    """
    if name not in FITS:
        raise KvhouseError(f"unknown fit {name!r}: choose one of {', '.join(FITS)}")
    return name


@dataclass(frozen=True, slots=True)
class Placement:
    """What a policy gives a request of one layout, and what it keeps free.

    Attributes:
        policy: One of ``POLICIES``.
        layout: Tokens and bytes of a block.
        max_length: Longest request allowed, in tokens.
        in_flight: The most tokens that one step computes for a request.
        fit: How contiguous runs are looked for, one of ``FITS``; ``buddy`` rounds reservations up
            to a power of two of blocks.
    """

    policy: str
    layout: KVLayout
    max_length: int
    in_flight: int
    fit: str = FIRST_FIT

    def require(self, max_length: int, token_budget: int) -> None:
        """Refuse requests or steps that the placement has no room for.

        Raises:
            KvhouseError: Requests may be longer than ``max_length``, or steps compute more of one
                than ``in_flight``.
        """
        if max_length > self.max_length:
            raise KvhouseError(
                f"max_length {max_length:,}: the KV memory was planned for requests of at most "
                f"{self.max_length:,} tokens; give both the same"
            )
        if min(max_length, token_budget) > self.in_flight:
            raise KvhouseError(
                f"token_budget {token_budget:,}: the KV memory was planned for steps of at most "
                f"{self.in_flight:,} tokens of a request; give both the same"
            )

    def blocks_to_admit(self, known: int, prompt: int, new: int) -> int:
        """Blocks that a request takes when it is admitted.

        Paged takes them for all ``known`` tokens at once, so that a prefill, once begun, never
        waits for memory.

        Args:
            known: Tokens that are known: the prompt, and after a preemption its output so far.
            prompt: Tokens of the prompt.
            new: The most tokens that will be generated.
        """
        return self.layout.blocks_for(self.tokens_to_admit(known, prompt, new), self.in_flight)

    def tokens_to_admit(self, known: int, prompt: int, new: int) -> int:
        """Tokens that ``blocks_to_admit`` makes room for."""
        if self.policy == PAGED:
            return known
        reserved = self._reserved(prompt, new)
        if self.fit != BUDDY:
            return reserved
        size = self.layout.block_size
        return size << (-(-reserved // size) - 1).bit_length()

    def _reserved(self, prompt: int, new: int) -> int:
        """Tokens that a contiguous policy reserves."""
        if self.policy == CONTIGUOUS_MAX:
            return self.max_length
        if self.policy == CONTIGUOUS_POW2:
            return min(self.max_length, prompt + (1 << (new - 1).bit_length()))
        return prompt + new

    def held_back(self, blocks: int, watermark: float) -> int:
        """Blocks of a pool that an admission must leave free while others run.

        Nothing contiguous grows after admission, so it needs no watermark.

        Raises:
            KvhouseError: The watermark is not a share in [0, 1).
        """
        if not 0 <= watermark < 1:
            raise KvhouseError(f"watermark {watermark}: give a share of the pool from 0 to below 1")
        return int(blocks * watermark) if self.policy == PAGED else 0
