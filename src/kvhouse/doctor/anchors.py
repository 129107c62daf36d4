"""Where a chunk of bytes may have an anchor, found four bytes at a time.

An anchor of seven bytes or more covers, wherever it lies, a whole word of four bytes at a multiple
of four. So one look at every fourth byte finds all such anchors at once: for each of the four ways
in which an anchor can lie, one of its words is chosen, and a table says which words are among them.
Only shorter anchors are searched for one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

_WORD = 4
#: An anchor that is shorter may cover no whole word.
_LEAST = 2 * _WORD - 1
#: Words are hashed to so many bits (Knuth's multiplicative hash).
_BITS = 16
_FACTOR = np.uint32(2654435761)
#: What a server writes most: other words are better signs.
_COMMON = (
    b"INFO (APIServer Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
    b"Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0% "
    b"/v1/chat/completions /v1/models /health /metrics HTTP/1.1 Decode batch Prefill batch "
)


class Anchors:
    """Finds any of some anchors."""

    def __init__(self, anchors: Iterable[bytes]) -> None:
        self.anchors = tuple(anchors)
        self.short = tuple(i for i, one in enumerate(self.anchors) if len(one) < _LEAST)

    def hits(self, buffer: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Places in order, each with the anchors that may be around it.

        Wherever an anchor is, one of the places lies within it; whether one is really there is for
        the caller to see.
        """
        short = list(self._short_hits(buffer))
        if not short:
            yield from self._word_hits(buffer)
            return
        yield from sorted([*self._word_hits(buffer), *short])

    @cached_property
    def _words(self) -> dict[int, tuple[int, ...]]:
        """For each chosen word, as a number, the anchors that have it."""
        found: dict[int, list[int]] = {}
        for index, anchor in enumerate(self.anchors):
            if len(anchor) < _LEAST:
                continue
            for shift in range(_WORD):
                places = range(shift, len(anchor) - _WORD + 1, _WORD)
                word = min((anchor[at : at + _WORD] for at in places), key=_commonness)
                found.setdefault(int.from_bytes(word, "little"), []).append(index)
        return {word: tuple(dict.fromkeys(indexes)) for word, indexes in found.items()}

    @cached_property
    def _table(self) -> npt.NDArray[np.bool_]:
        table = np.zeros(2**_BITS, dtype=np.bool_)
        table[_hashed(np.array(list(self._words), dtype=np.uint32))] = True
        return table

    def _word_hits(self, buffer: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
        words = np.frombuffer(buffer, dtype="<u4", count=len(buffer) // _WORD)
        places = np.flatnonzero(self._table[_hashed(words)])
        known = self._words
        for at, word in zip(places.tolist(), words[places].tolist(), strict=True):
            indexes = known.get(word)
            if indexes is not None:
                yield at * _WORD, indexes

    def _short_hits(self, buffer: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Once a line is enough."""
        for index in self.short:
            anchor = self.anchors[index]
            at = buffer.find(anchor)
            while at >= 0:
                yield at, (index,)
                end = buffer.find(b"\n", at)
                at = -1 if end < 0 else buffer.find(anchor, end)


def _hashed(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return (words * _FACTOR) >> np.uint32(32 - _BITS)


def _commonness(word: bytes) -> tuple[bool, int]:
    """Small letters and spaces are what most of a log consists of."""
    return word in _COMMON, sum(byte == 32 or 97 <= byte <= 122 for byte in word)
