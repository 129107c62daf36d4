"""Sums of floats that are exact until they are asked for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

#: A float is a whole number of 53 bits times a power of two; halves of it sum up in floats exactly.
_BITS, _HALF = 53, 26


class ExactSum:
    """A sum that rounds once, at the end: what ``math.fsum`` gives of all values together.

    Unlike ``fsum`` it takes the values array by array and need not keep them.
    """

    def __init__(self) -> None:
        self._by_exponent: dict[int, int] = {}

    def add(self, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """Add finite floats, fewer than 2**25 of them."""
        mantissas, exponents = np.frexp(values)
        whole = np.ldexp(mantissas, _BITS).astype(np.int64)
        least = int(exponents.min(initial=0))
        places = exponents - least
        high = np.bincount(places, weights=whole >> _HALF)
        low = np.bincount(places, weights=whole & ((1 << _HALF) - 1))
        for place, (upper, lower) in enumerate(zip(high.tolist(), low.tolist(), strict=True)):
            if upper or lower:
                exponent = least + place
                total = self._by_exponent.get(exponent, 0)
                self._by_exponent[exponent] = total + (int(upper) << _HALF) + int(lower)

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        if not self._by_exponent:
            return 0.0
        least = min(self._by_exponent)
        total = sum(count << (exponent - least) for exponent, count in self._by_exponent.items())
        return float(Fraction(total) * Fraction(2) ** (least - _BITS)) if total else 0.0
