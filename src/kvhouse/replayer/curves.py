"""How long requests took: their distribution, and how it went over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvhouse.replayer.records import RequestRecord

#: Points of a distribution, and bins of time.
QUANTILES, BINS = 201, 60

#: The times of a finished request, by the names that results give them.
TIMES: dict[str, Callable[[RequestRecord], float | None]] = {
    "first_token_seconds": lambda record: record.first_token_seconds,
    "per_token_seconds": lambda record: record.per_token_seconds,
    "latency_seconds": lambda record: record.latency_seconds,
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One of the times of all finished requests, in seconds.

    Attributes:
        quantiles: At equal steps from the least to the most; empty where there is none.
        p50: The median of the requests that finished in each bin; None where none did.
        p99: The same for the 99th percentile.
    """

    quantiles: list[float]
    p50: list[float | None]
    p99: list[float | None]

    @classmethod
    def of(cls, ends: Sequence[float], values: Sequence[float], end: float) -> Curve:
        """Of these values.

        Args:
            ends: When each request finished.
            values: How long it took.
            end: The end of the last bin; the first begins at time 0.
        """
        if not values:
            return cls([], [None] * BINS, [None] * BINS)
        taken = np.asarray(values)
        places = np.asarray(ends) * (BINS / end if end else 0.0)
        bins = np.minimum(places.astype(int), BINS - 1)
        order = np.argsort(bins, kind="stable")
        parts = np.split(taken[order], np.searchsorted(bins[order], np.arange(1, BINS)))
        return cls(
            np.quantile(taken, np.linspace(0, 1, QUANTILES)).tolist(),
            [_percentile(part, 50) for part in parts],
            [_percentile(part, 99) for part in parts],
        )


def curves_of(records: Sequence[RequestRecord], end: float) -> dict[str, Curve]:
    """The curves of every one of ``TIMES``."""
    finished = [(record, record.finished) for record in records if record.finished is not None]
    curves = {}
    for name, time in TIMES.items():
        pairs = [(at, value) for record, at in finished if (value := time(record)) is not None]
        curves[name] = Curve.of([at for at, _ in pairs], [value for _, value in pairs], end)
    return curves


def _percentile(part: np.ndarray[Any, Any], percent: float) -> float | None:
    return float(np.percentile(part, percent)) if len(part) else None
