"""A step's transfers carried out: blocks between the pool and the tiers below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvhouse.core.step import Move, StepPlan, Transfer
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.tier_stores import TierStore


@dataclass(frozen=True, slots=True)
class Failed:
    """The transfers of a plan that came to nothing; see ``core.step.StepResult``."""

    loads: tuple[int, ...] = ()
    stores: tuple[Transfer, ...] = ()
    moves: tuple[Move, ...] = ()


class Transfers:
    """Copies blocks.

    Args:
        kv: The pool.
        tiers: What lies below it, what is next below it first.
    """

    def __init__(self, kv: KVTensors, tiers: Sequence[TierStore] = ()) -> None:
        self._kv = kv
        self._tiers = tuple(tiers)

    def carry_out(self, plan: StepPlan) -> Failed:
        """Carry out the moves, then the stores, then the loads of ``plan``, as it demands."""
        return Failed(
            moves=tuple(move for move in plan.moves if not self._move(move)),
            stores=tuple(store for store in plan.stores if not self._store(store)),
            loads=tuple(load.block for load in plan.loads if not self._load(load)),
        )

    def _move(self, move: Move) -> bool:
        content = self._tiers[move.tier].read(move.slot)
        return content is not None and self._tiers[move.tier + 1].write(move.into, content)

    def _store(self, store: Transfer) -> bool:
        return self._tiers[store.tier].write(store.slot, self._kv.read_block(store.block))

    def _load(self, load: Transfer) -> bool:
        content = self._tiers[load.tier].read(load.slot)
        if content is not None:
            self._kv.write_block(load.block, content)
        return content is not None
