"""The engine's tiers: their links as measured, when loading pays, and their stores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from kvhouse.core.tiers import LoadRule, always
from kvhouse.costs import Roofline
from kvhouse.devices.local import measure
from kvhouse.engine.tier_stores import FileStore, HostStore, TierStore
from kvhouse.layout import KVLayout
from kvhouse.links import load_rule
from kvhouse.replayer.tiering import LinkedTier, Tiering
from kvhouse.spec.model import ModelSpec

#: Blocks that are written and read to measure a link, and how often.
_PROBED = 8
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class TiersBelow:
    """What tiers there are below the pool, and when loading from them pays."""

    tiers: tuple[LinkedTier, ...] = ()
    pays: LoadRule = always


NO_TIERS = TiersBelow()


def tiers_below(
    tiering: Tiering,
    spec: ModelSpec,
    layout: KVLayout,
    directory: Path | None = None,
    rule: LoadRule | None = None,
) -> TiersBelow:
    """The tiers that are asked for; each link whose rate is not given is measured.

    Args:
        tiering: What was asked for.
        spec: The model.
        layout: What a block is.
        directory: Where files are made; by default where the system keeps temporary ones.
        rule: When loading pays; by default where it is sooner done than computing again at this
            machine's measured rate in the model's dtype: a floor, so loading is chosen the later.

    Raises:
        KvhouseError: A figure is out of range, or the memory or the directory is not there.
    """
    if not tiering:
        return NO_TIERS
    device = measure()
    # Any rate will do until it is measured.
    tiers = replace(
        tiering,
        host_link=tiering.host_link or (tiering.host_memory and 1.0),
        nvme_link=tiering.nvme_link or (tiering.nvme_memory and 1.0),
    ).on(device)
    given = {"host": tiering.host_link, "nvme": tiering.nvme_link}
    linked = tuple(
        tier if given[tier.config.name] else _measured(tier, layout, directory) for tier in tiers
    )
    if rule is None:
        roofline = Roofline(spec, layout, device, layout.dtype)
        rule = load_rule(roofline, [tier.link for tier in linked])
    return TiersBelow(linked, rule)


def make_stores(
    tiers: Sequence[LinkedTier], layout: KVLayout, directory: Path | None = None
) -> tuple[TierStore, ...]:
    """A store for each tier: ``host`` in this machine's memory, any other in files.

    Raises:
        KvhouseError: The memory or the directory is not there.
    """
    return tuple(
        _store(tier, layout.blocks_in(tier.config.bytes), layout, directory) for tier in tiers
    )


def _store(tier: LinkedTier, slots: int, layout: KVLayout, directory: Path | None) -> TierStore:
    if tier.config.name == "host":
        return HostStore(slots, layout.block_bytes)
    return FileStore(directory, layout.block_bytes)


def _measured(tier: LinkedTier, layout: KVLayout, directory: Path | None) -> LinkedTier:
    """The tier with the rate at which blocks come out of a small store like its own."""
    blocks = min(_PROBED, layout.blocks_in(tier.config.bytes))
    store = _store(tier, blocks, layout, directory)
    content = torch.zeros(layout.block_bytes, dtype=torch.uint8)
    for slot in range(blocks):
        store.write(slot, content)
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        for slot in range(blocks):
            found = store.read(slot)
            if found is not None:
                content.copy_(found)
        seconds.append(time.perf_counter() - began)
    rate = blocks * layout.block_bytes / median(seconds)
    return replace(tier, link=replace(tier.link, bandwidth=rate))
