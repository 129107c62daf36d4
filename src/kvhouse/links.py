"""Links between the device and the tiers below it: what transfers take, and when loading pays.

As for the roofline, every time is a floor: full bandwidth, and nothing else on the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvhouse.core.step import StepPlan
from kvhouse.core.tiers import LoadRule
from kvhouse.costs import Roofline


@dataclass(frozen=True, slots=True)
class Link:
    """The way between the device and a tier below it.

    Attributes:
        bandwidth: Bytes a second, in one direction.
        latency: Seconds before the first byte of a step's transfers comes.
    """

    bandwidth: float
    latency: float = 0.0

    def seconds(self, size: int) -> float:
        """The least time for ``size`` bytes in one step; 0 for none."""
        return self.latency + size / self.bandwidth if size else 0.0


@dataclass(frozen=True, slots=True)
class TransferCost:
    """The least times of a step's transfers.

    Attributes:
        load_seconds: Loads, one tier after the other, since all end at the device. Rows wait.
        store_seconds: Stores and moves, each link on its own. They go on beside the rows.
    """

    load_seconds: float
    store_seconds: float

    def seconds(self, compute: float) -> float:
        """A step's time: its rows begin after its loads, and it ends with its last store."""
        return self.load_seconds + max(compute, self.store_seconds)


def transfer_cost(plan: StepPlan, block_bytes: int, links: Sequence[Link]) -> TransferCost:
    """What the transfers of a plan take at least.

    Args:
        plan: The plan.
        block_bytes: Bytes of a block.
        links: The link of each tier, the one next below the pool first.
    """
    loads, stores = [0] * len(links), [0] * len(links)
    for load in plan.loads:
        loads[load.tier] += block_bytes
    for store in plan.stores:
        stores[store.tier] += block_bytes
    for move in plan.moves:
        stores[move.tier + 1] += block_bytes
    return TransferCost(
        sum(link.seconds(size) for link, size in zip(links, loads, strict=True)),
        max((link.seconds(size) for link, size in zip(links, stores, strict=True)), default=0.0),
    )


def load_rule(roofline: Roofline, links: Sequence[Link]) -> LoadRule:
    """The rule that loads what is sooner loaded than computed again.

    What loading takes is compared with the FLOPs that it spares, at the rate of the roofline. The
    weights are not counted: the step reads them for its other rows in any case.

    Args:
        roofline: Model, layout and device.
        links: The link of each tier, the one next below the pool first.
    """
    block_bytes = roofline.layout.block_bytes

    def pays(first: int, tokens: int, blocks: tuple[int, ...]) -> bool:
        loading = sum(
            link.seconds(count * block_bytes) for link, count in zip(links, blocks, strict=True)
        )
        return loading < roofline.chunk(first, tokens).compute_seconds

    return pays
