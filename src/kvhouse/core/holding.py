"""What one request holds of the pool: a block table per group of layers, and a slot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from kvhouse.core.step import BlockTable
from kvhouse.layout import LayerGroup

#: More tokens than any request has.
_NEVER = 2**62


class GroupTable:
    """A request's blocks in one group of layers.

    Attributes:
        group: The layers.
        first: Index of the first block that is still held; those before it were let go.
        ids: Block ids, in the order of the tokens.
    """

    __slots__ = ("first", "group", "ids")

    def __init__(self, group: LayerGroup, first: int, ids: list[int]) -> None:
        self.group = group
        self.first = first
        self.ids = ids

    @property
    def end(self) -> int:
        """Index after the last block."""
        return self.first + len(self.ids)


class Holding:
    """What one request holds, and what a step asks of it in most cases, kept at hand.

    Attributes:
        tables: One for each group.
        slot: Where its state lies; None where there is none.
        reused: Tokens that were in the pool already when it was admitted.
        loaded: Tokens that were loaded from tiers then.
        room: Tokens that every table has blocks for, as far as is at hand: at first none.
        passes: Computed tokens from which on a block lies out of reach; at first any.
        shown: The tables and their starts, as rows carry them.
        shown_for: Blocks of the layout's own size that ``shown`` was made for; -1 for none.
    """

    __slots__ = ("loaded", "passes", "reused", "room", "shown", "shown_for", "slot", "tables")

    def __init__(
        self, tables: tuple[GroupTable, ...], slot: int | None, reused: int, loaded: int
    ) -> None:
        self.tables = tables
        self.slot = slot
        self.reused = reused
        self.loaded = loaded
        self.room = self.passes = 0
        self.shown: tuple[tuple[BlockTable, ...], tuple[int, ...]] = ((), ())
        self.shown_for = -1

    def blocks(self) -> list[int]:
        """All its blocks, group by group; not to be changed."""
        if len(self.tables) == 1:
            return self.tables[0].ids
        return list(chain.from_iterable([table.ids for table in self.tables]))

    def renew(self) -> None:
        """Take in that the tables have changed."""
        room = passes = _NEVER
        for table in self.tables:
            group = table.group
            if group.reach.kind != "another":
                room = min(room, table.end * group.block_size)
            if group.reach.tokens:
                passes = min(passes, group.passed_at(table.first))
        self.room, self.passes, self.shown_for = room, passes, -1


def deal(
    groups: Sequence[LayerGroup],
    firsts: Sequence[int],
    there: Sequence[list[int]],
    counts: list[int],
    blocks: list[int],
) -> tuple[GroupTable, ...]:
    """A table for each group: what is there already, and its share of what was taken.

    Args:
        groups: The groups of layers.
        firsts: The index of each group's first block that is there; empty where none is.
        there: Each group's blocks that are there.
        counts: How many each group takes beside them.
        blocks: What was taken, for all groups together.
    """
    if not firsts and len(groups) == 1:
        return (GroupTable(groups[0], 0, blocks),)
    tables, at = [], 0
    for number, (group, count) in enumerate(zip(groups, counts, strict=True)):
        first, found = (firsts[number], there[number]) if firsts else (0, [])
        tables.append(GroupTable(group, first, [*found, *blocks[at : at + count]]))
        at += count
    return tuple(tables)
