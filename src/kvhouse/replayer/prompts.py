"""Prompts for a trace, which says how long they are and how they begin, and not what they say."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from kvhouse.replayer.traces import TraceRequest


class Prompts:
    """Random token ids; where two requests share a named text, these are the same.

    Args:
        seed: Decides them.
        vocab_size: Ids are below it.
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._seed = seed
        self._vocab_size = vocab_size
        self._rest = np.random.default_rng(seed)
        self._names: dict[Hashable, int] = {}

    def of(self, request: TraceRequest) -> list[int]:
        """The prompt's token ids, ``prompt_tokens`` of them."""
        ids: list[int] = []
        if request.hash_ids:
            for name in request.hash_ids[: request.prompt_blocks]:
                ids += self._named((name, request.hash_block), request.hash_block)
            ids = ids[: request.named_tokens]
        elif request.prefix_id is not None:
            ids = self._named(request.prefix_id, request.prefix_tokens)
        ids = ids[: request.prompt_tokens]
        return ids + self._drawn(self._rest, request.prompt_tokens - len(ids))

    def _named(self, name: Hashable, count: int) -> list[int]:
        """The first tokens of the text with that name."""
        number = self._names.setdefault(name, len(self._names))
        return self._drawn(np.random.default_rng((self._seed, number)), count)

    def _drawn(self, generator: np.random.Generator, count: int) -> list[int]:
        ids: list[int] = generator.integers(self._vocab_size, size=count).tolist()
        return ids
