"""Service level objectives: which requests were served in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kvhouse.errors import KvhouseError
from kvhouse.replayer.ratio import ratio
from kvhouse.replayer.records import RequestRecord


@dataclass(frozen=True, slots=True)
class SLO:
    """What a request must meet, all in seconds; None asks nothing.

    Attributes:
        first_token: From arrival to the first token (TTFT).
        per_token: From the first token to the last, per token after the first (TPOT); a request
            of one token meets it.
        latency: From arrival to the last token.

    Raises:
        KvhouseError: Nothing is asked, or a time is not above 0.
    """

    first_token: float | None = None
    per_token: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        asked = [limit for limit in asdict(self).values() if limit is not None]
        if not asked:
            raise KvhouseError("an SLO asks for a time to first token, per token or in all")
        if not all(math.isfinite(limit) and limit > 0 for limit in asked):
            raise KvhouseError("an SLO's times are above 0 seconds")

    def met_by(self, record: RequestRecord) -> bool:
        """Whether a request finished, and within every limit."""
        if record.finished is None:
            return False
        spans = (
            (record.first_token_seconds, self.first_token),
            (record.per_token_seconds or 0.0, self.per_token),
            (record.latency_seconds, self.latency),
        )
        return all(limit is None or span <= limit for span, limit in spans)


@dataclass(frozen=True, slots=True)
class Goodput:
    """How many requests met an SLO.

    Attributes:
        slo: What was asked.
        requests: Requests that met all of it.
        share: Of the requests that ended, rejected ones included; 0 of none.
        requests_per_second: Over the makespan.
    """

    slo: SLO
    requests: int
    share: float
    requests_per_second: float

    @classmethod
    def of(cls, slo: SLO, records: Sequence[RequestRecord], seconds: float) -> Goodput:
        """Of all requests that ended in ``seconds``."""
        met = sum(slo.met_by(record) for record in records)
        return cls(slo, met, ratio(met, len(records)), ratio(met, seconds))
