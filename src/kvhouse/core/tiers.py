"""Tiers below the device's pool: what a step stores, loads and moves. Only executors copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kvhouse.core.cached_pool import Content
from kvhouse.core.step import Move, StepPlan, StepResult, Transfer
from kvhouse.core.tier import Tier, TierConfig
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout

#: Whether loading pays: called with the first token, the number of tokens that need not be
#: computed then, and the blocks to be loaded for that from each tier.
LoadRule = Callable[[int, int, tuple[int, ...]], bool]


def always(first: int, tokens: int, blocks: tuple[int, ...]) -> bool:
    """Load whatever is found."""
    del first, tokens, blocks
    return True


class Tiers:
    """Tiers one below the other, and the transfers of the step under way.

    What the first tier gives up moves to the second, and so on; what the last gives up is lost.

    Args:
        configs: The tiers, the one next below the pool first.
        layout: What a block is.
        pays: Decides whether what was found is loaded.

    Raises:
        KvhouseError: A tier holds not one block, or one below another is to be written through.
    """

    def __init__(self, configs: Sequence[TierConfig], layout: KVLayout, pays: LoadRule) -> None:
        for config in configs[1:]:
            if config.write == "through":
                raise KvhouseError(
                    f"tier {config.name}: only the first tier can be written through; this one "
                    f"takes what {configs[0].name} gives up: set write to 'back'"
                )
        self.pays = pays
        self._tiers = tuple(Tier(config, layout) for config in configs)
        self._loads: dict[Transfer, Content] = {}
        self._stores: dict[Transfer, Content] = {}
        self._moves: dict[Move, Content] = {}

    def __len__(self) -> int:
        return len(self._tiers)

    def __iter__(self) -> Iterator[Tier]:
        return iter(self._tiers)

    @property
    def write_through(self) -> bool:
        """Whether blocks are stored once they are full, and not only when they must go."""
        return self._tiers[0].config.write == "through"

    @property
    def empty(self) -> bool:
        """Whether there is nothing that could be loaded."""
        return not any(len(tier) for tier in self._tiers)

    @property
    def loads(self) -> Iterable[tuple[Transfer, Content]]:
        """The loads of the step under way, and what they load."""
        return self._loads.items()

    @property
    def transfers(self) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...], tuple[Move, ...]]:
        """The loads, stores and moves of the step under way."""
        return tuple(self._loads), tuple(self._stores), tuple(self._moves)

    def find(self, content: Content, depth: int) -> int | None:
        """The first of the uppermost ``depth`` tiers from which the content can be loaded."""
        for number, tier in enumerate(self._tiers[:depth]):
            if tier.find(content) is not None:
                return number
        return None

    def store(self, block: int, content: Content) -> None:
        """Store what a block of the pool holds, unless the first tier has it."""
        slot = self._put(0, content)
        if slot is not None:
            self._stores[Transfer(0, slot, block)] = content

    def pin(self, number: int, content: Content) -> None:
        """Keep what will be loaded where it is."""
        self._tiers[number].pin(content)

    def load(self, number: int, content: Content, block: int) -> None:
        """Fill a block of the pool with pinned content."""
        tier = self._tiers[number]
        slot = tier.find(content)
        assert slot is not None, "what is pinned is still there"
        tier.touch(content)
        self._loads[Transfer(number, slot, block)] = content

    def decline(self, blocks: Sequence[int]) -> None:
        """Count what was found in each tier and is computed all the same."""
        for tier, count in zip(self._tiers, blocks, strict=False):
            tier.counters.declined += count

    def settle(self, result: StepResult) -> None:
        """Take in which transfers of a step came to nothing: what they concern is forgotten."""
        for tier in self._tiers:
            tier.settle()
        for load, content in self._loads.items():
            self._read(load.tier, content, load.block in result.failed_loads)
        for store, content in self._stores.items():
            self._written(store.tier, content, store in result.failed_stores)
        for move, content in self._moves.items():
            self._written(move.tier + 1, content, move in result.failed_moves)
        self._loads, self._stores, self._moves = {}, {}, {}

    def drop(self, content: Content) -> None:
        """Forget a content in every tier, between steps."""
        for tier in self._tiers:
            tier.drop(content)

    def _put(self, number: int, content: Content) -> int | None:
        """Make a place for a content in a tier; None where it is there or all is pinned."""
        tier = self._tiers[number]
        if content in tier:
            tier.touch(content)
            return None
        admitted = tier.admit(content)
        if admitted is None:
            return None
        if admitted.gone is not None and number + 1 < len(self._tiers):
            # What the tier below gives up for it is moved first.
            into = self._put(number + 1, admitted.gone)
            if into is not None:
                self._moves[Move(number, admitted.slot, into)] = admitted.gone
        return admitted.slot

    def _read(self, number: int, content: Content, failed: bool) -> None:
        tier = self._tiers[number]
        if failed:
            tier.counters.failed += 1
            tier.drop(content)
        else:
            tier.counters.loaded += 1

    def _written(self, number: int, content: Content, failed: bool) -> None:
        tier = self._tiers[number]
        if failed:
            tier.counters.failed += 1
            tier.reject(content)
        else:
            tier.counters.stored += 1


def all_failed(plan: StepPlan) -> StepResult:
    """What is taken as the result of a step that was interrupted: nothing can be relied on."""
    blocks = tuple(load.block for load in plan.loads)
    return StepResult(0.0, (), blocks, plan.stores, plan.moves)


def refuse_stray(plan: StepPlan, result: StepResult) -> None:
    """Refuse failures of transfers that the plan does not name.

    Raises:
        RuntimeError: With the kind of transfer.
    """
    named = (
        ("loads", {load.block for load in plan.loads}, result.failed_loads),
        ("stores", set(plan.stores), result.failed_stores),
        ("moves", set(plan.moves), result.failed_moves),
    )
    for kind, planned, failed in named:
        if not planned.issuperset(failed):
            raise RuntimeError(f"step {plan.index}: {kind} failed that were not planned")
