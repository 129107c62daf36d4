"""What tiers below the pool came to in a drive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvhouse.core.tier import Tier
from kvhouse.core.tiers import Tiers
from kvhouse.replayer.ratio import ratio
from kvhouse.replayer.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of blocks, and their bytes."""

    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TierTraffic:
    """What one tier did.

    Attributes:
        name: What it is called.
        capacity: Its blocks.
        hits: Found in it at admissions: ``loaded`` and ``declined``.
        loaded: Read from it into the pool.
        declined: Found in it, but computed again because that is sooner.
        stored: Written into it, from the pool or from the tier above.
        evicted: Given up for others, to the tier below where there is one.
        dropped: Forgotten because nobody could ask for it any more, or because it could not be
            loaded.
        failed: Transfers into it, or loads from it, that came to nothing.
    """

    name: str
    capacity: Amount
    hits: Amount
    loaded: Amount
    declined: Amount
    stored: Amount
    evicted: Amount
    dropped: Amount
    failed: Amount

    @classmethod
    def of(cls, tier: Tier, block_bytes: int) -> TierTraffic:
        """What ``tier`` counted."""
        counted = tier.counters
        counts = {
            "capacity": tier.capacity,
            "hits": counted.hits,
            "loaded": counted.loaded,
            "declined": counted.declined,
            "stored": counted.stored,
            "evicted": counted.evicted,
            "dropped": counted.dropped,
            "failed": counted.failed,
        }
        amounts = {name: Amount(count, count * block_bytes) for name, count in counts.items()}
        return cls(tier.config.name, **amounts)


@dataclass(frozen=True, slots=True)
class TierHits:
    """What the finished requests loaded, and the traffic of each tier.

    Tokens in one run are loaded where any block of them is: a block between others that is in
    the pool already counts too.

    Attributes:
        requests: Requests that loaded anything.
        request_share: Of the finished requests.
        prompt_tokens: Prompt tokens that they loaded when they were first admitted.
        prompt_share: Of their prompt tokens.
        resumed_tokens: Tokens that they loaded when they came back from a preemption.
        traffic: One entry for each tier, the one next below the pool first.
    """

    requests: int
    request_share: float
    prompt_tokens: int
    prompt_share: float
    resumed_tokens: int
    traffic: tuple[TierTraffic, ...]

    @classmethod
    def of(cls, finished: Sequence[RequestRecord], tiers: Tiers, block_bytes: int) -> TierHits:
        """Of the finished requests of a drive over ``tiers``."""
        requests = sum(record.loaded > 0 for record in finished)
        prompt = sum(record.loaded_first for record in finished)
        whole = sum(record.prompt_tokens for record in finished)
        return cls(
            requests=requests,
            request_share=ratio(requests, len(finished)),
            prompt_tokens=prompt,
            prompt_share=ratio(prompt, whole),
            resumed_tokens=sum(record.loaded for record in finished) - prompt,
            traffic=tuple(TierTraffic.of(tier, block_bytes) for tier in tiers),
        )
