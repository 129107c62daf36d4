"""Who can measure more of this machine than the lower rooms can: the front door appoints them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured of this machine, on all cores that this process may run on.

    Attributes:
        bandwidth: Bytes per second read from memory.
        flops: Operations per second of matrix products, by the dtype of the factors.
        source: How, in words.
    """

    bandwidth: float
    flops: Mapping[str, float]
    source: str


#: Each measures in a second or two; it raises ImportError or OSError where what it measures with
#: is not installed. Rooms import downwards only, so ``kvhouse`` itself puts them here.
METERS: list[Callable[[], Rates]] = []
