"""Chance that repeats: the same seed gives the same numbers on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

#: Numbers drawn from the generator at a time.
_CHUNK = 4096


class Uniforms:
    """Numbers from 0 (included) to 1 (excluded), in steps of 2⁻⁵³.

    They are the raw bits of numpy's PCG64, whose stream numpy promises never to change (NEP 19), as
    it does not for its distributions. Each purpose has a stream of its own, so that what one draws
    does not shift what another gets.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        """Args: seed: From 0 on. purpose: Names the stream."""
        self._numbers = _stream(seed, crc32(purpose.encode()))

    def draw(self) -> float:
        """The next number."""
        return next(self._numbers)

    def draw_open(self) -> float:
        """The next number, from the middle of its step, so never 0."""
        return next(self._numbers) + 2.0**-54

    def below(self, count: int) -> int:
        """The next number as a whole one from 0 to ``count`` - 1, each as likely."""
        return int(next(self._numbers) * count)


def _stream(seed: int, stream: int) -> Iterator[float]:
    from numpy.random import PCG64, SeedSequence

    bits = PCG64(SeedSequence((seed, stream)))
    while True:
        for number in bits.random_raw(_CHUNK).tolist():
            yield (number >> 11) * 2.0**-53
