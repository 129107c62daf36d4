"""What a replay measured that explains its figures."""

from __future__ import annotations

from collections.abc import Iterator

from kvhouse.replayer.remedies.figures import Driven, Figures
from kvhouse.replayer.results import ReplayResult
from kvhouse.units import bytes_text


def measured(driven: Driven, base: Figures) -> Iterator[str]:
    """Hit rates, what was loaded and what was not, and rejections unlike the base's; in words."""
    figures = driven.figures
    if figures.prefix_share is not None:
        yield f"{figures.prefix_share:.1%} of prompt tokens found in the pool"
    if figures.loaded_share is not None:
        yield f"{figures.loaded_share:.1%} of prompt tokens loaded from a tier"
        yield from _traffic(driven.results)
    if figures.preemptions:
        again = sum(result.recomputed_tokens for result in driven.results)
        yield f"tokens computed again after preemptions: {again:,}"
    rejected, before = (one.submitted - one.finished for one in (figures, base))
    if rejected != before:
        yield f"requests rejected: {rejected:,} instead of {before:,}"


def _traffic(results: tuple[ReplayResult, ...]) -> Iterator[str]:
    """Bytes of each tier over all replicas, and blocks that were sooner computed."""
    tiers = [tier for result in results if result.tiers for tier in result.tiers.traffic]
    for name in dict.fromkeys(tier.name for tier in tiers):
        mine = [tier for tier in tiers if tier.name == name]
        stored, loaded = (
            bytes_text(sum(getattr(tier, what).bytes for tier in mine))
            for what in ("stored", "loaded")
        )
        declined = sum(tier.declined.blocks for tier in mine)
        yield (
            f"{name}: {stored} stored, {loaded} loaded, {declined:,} blocks not loaded since "
            "computing is sooner"
        )
