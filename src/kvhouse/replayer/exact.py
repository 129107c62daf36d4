"""Sums of floats that are exact until they are asked for."""

from __future__ import annotations

import math

import numpy as np


class ExactSum:
    """A sum that rounds once, at the end: what ``math.fsum`` gives of all values together.

    Unlike ``fsum`` it takes the values array by array and need not keep them, but for a few floats
    of each array. These are exact sums of parts of its values (Rump, Ogita and Oishi 2008,
    "Accurate floating-point summation", doi 10.1137/050645671, ``ExtractVector``): all values
    rounded to multiples of one power of two, so coarse that their sum needs no more bits than a
    float has, then the same of what is left of them, until nothing is.
    """

    def __init__(self) -> None:
        self._parts: list[float] = []

    def add(self, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """Add finite floats, of magnitudes below 2**900 and fewer than 2**25 of them."""
        left = values
        while most := float(np.abs(left).max(initial=0.0)):
            _, exponent = math.frexp(most)
            coarse = math.ldexp(1.0, exponent + len(values).bit_length())
            part = (left + coarse) - coarse
            self._parts.append(float(part.sum()))
            left = left - part

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        return math.fsum(self._parts)
