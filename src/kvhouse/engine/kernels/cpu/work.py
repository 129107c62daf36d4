"""Cutting a step's work into shares for threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvhouse.engine.kernels.cpu.fields import WORK
from kvhouse.engine.kv import LayerKV
from kvhouse.engine.packed import PackedRow

#: The fewest keys for which a split of a row's keys is worth merging again.
_LEAST_KEYS = 256

#: Shares for each thread at least, so that all have something to do to the end.
_SHARES = 6


@dataclass(frozen=True, slots=True)
class Tables:
    """Where the tokens of a step lie in the blocks of one group.

    Attributes:
        blocks: All rows' block tables, one behind the other.
        begins: Where each row's begins.
        places: Block and offset of each token of the pack, ``[T, 2]``.
        addresses: Of ``blocks`` and of ``places``; asking numpy takes a microsecond each time.
    """

    blocks: NDArray[np.int64]
    begins: NDArray[np.int64]
    places: NDArray[np.int64]
    addresses: tuple[int, int]

    @classmethod
    def of(cls, rows: Sequence[PackedRow], group: int, block_size: int) -> Tables:
        """Look up every token."""
        tables = [packed.row.tables[group] for packed in rows]
        lengths = np.array([len(table) for table in tables], np.int64)
        begins = np.cumsum(lengths) - lengths
        blocks = np.fromiter((block for table in tables for block in table), np.int64)
        counts = np.array([packed.row.count for packed in rows], np.int64)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        positions = np.repeat([packed.row.first for packed in rows], counts) + within
        starts = np.array([packed.row.starts[group] for packed in rows], np.int64)
        entries = positions // block_size + np.repeat(begins - starts, counts)
        places = np.stack((blocks[entries], positions % block_size), axis=1)
        return cls(blocks, begins, places, (blocks.ctypes.data, places.ctypes.data))


@dataclass(frozen=True, slots=True)
class Job:
    """Work of one kind in a step, for the layers of one group.

    Attributes:
        alone: Whether its tokens come alone.
        works: Its shares, ``WORK``; each is done by ``each`` units.
        address: Of ``works``.
        shared: Query heads to a KV head.
        unit_heads: KV heads that a unit takes together.
        part_heads: Query heads of a KV head that a unit takes together.
        parts: Units that a KV head is divided into by query heads.
        each: Units of a share.
        rows: Rows of a unit at most: its tokens times its query heads.
        records: Partial results that split shares leave for each other.
        merges: Counters that they share.
        pairs: Query heads times the keys that they see, over all tokens.
    """

    alone: bool
    works: NDArray[np.void]
    address: int
    shared: int
    unit_heads: int
    part_heads: int
    parts: int
    each: int
    rows: int
    records: int
    merges: int
    pairs: int


def jobs(
    rows: Sequence[PackedRow],
    kept: LayerKV,
    tables: Tables,
    *,
    heads: int,
    most_rows: tuple[int, int],
    threads: int,
) -> tuple[Job, ...]:
    """Cut a step into jobs: one for tokens that come alone, one for those that come together.

    A single token takes all KV heads of a block at once, which lie together. Of many tokens a
    unit takes as many as it has room for, with the keys of one KV head.

    Args:
        rows: The step's rows.
        kept: A layer.
        tables: The tables of its group.
        heads: Query heads.
        most_rows: Rows of a unit at most, where one token's query heads are not more: of tokens
            that come alone, and of those that come together.
        threads: Threads that share the work.
    """
    alone = [number for number, packed in enumerate(rows) if packed.row.count == 1]
    together = [number for number, packed in enumerate(rows) if packed.row.count > 1]
    kv_heads = kept.vectors[0].heads
    shared = heads // kv_heads
    found = []
    for numbers, most in zip((alone, together), most_rows, strict=True):
        if not numbers:
            continue
        parts = -(-shared // most)
        part_heads = -(-shared // parts)
        room = max(1, most // part_heads)
        tokens, unit_heads = (1, min(room, kv_heads)) if numbers is alone else (room, 1)
        groups = -(-kv_heads // unit_heads)
        cut = _Cut(rows, numbers, kept, tables, tokens)
        each = groups * parts
        works, records, merges = cut.shares(each, threads)
        found.append(
            Job(
                numbers is alone,
                works,
                works.ctypes.data,
                shared,
                -(-kv_heads // groups),
                part_heads,
                parts,
                each,
                tokens * part_heads * unit_heads,
                records,
                merges,
                cut.pairs * heads,
            )
        )
    return tuple(found)


class _Cut:
    """Rows cut into tiles of at most ``tokens`` tokens, and the keys that each tile sees."""

    def __init__(
        self,
        rows: Sequence[PackedRow],
        numbers: Sequence[int],
        kept: LayerKV,
        tables: Tables,
        tokens: int,
    ) -> None:
        self._rows, self._kept, self._tables = rows, kept, tables
        self._tiles = []
        for number in numbers:
            row = rows[number].row
            for token in range(0, row.count, tokens):
                count, position = min(tokens, row.count - token), row.first + token
                self._tiles.append(
                    (number, token, count, kept.reach.first(position), position + count)
                )
        #: Tokens times the keys that they see.
        self.pairs = sum((end - begin) * count for _, _, count, begin, end in self._tiles)

    def shares(self, each: int, threads: int) -> tuple[NDArray[np.void], int, int]:
        """``WORK`` records, how many partial results they leave, and how many counters."""
        most = max(1, self.pairs * each // (threads * _SHARES))
        found: list[tuple[int, ...]] = []
        records = merges = 0
        for number, token, count, begin, end in self._tiles:
            packed = self._rows[number]
            keys = max(_LEAST_KEYS, -(-most // count))
            edges = _edges(begin, end, keys, self._kept.block_size)
            splits = len(edges) - 1
            common = (
                packed.start + token,
                count,
                packed.row.first + token,
                int(self._tables.begins[number]),
                packed.row.starts[self._kept.group],
            )
            found += [
                (*common, low, high, splits, split, records, merges)
                for split, (low, high) in enumerate(pairwise(edges))
            ]
            if splits > 1:
                records += splits
                merges += 1
        works = np.array(found, WORK)
        # The longest first, so that no thread begins one when the others are done.
        order = np.argsort((works["begin"] - works["end"]) * works["tokens"], kind="stable")
        return works[order], records, merges


def _edges(begin: int, end: int, keys: int, align: int) -> list[int]:
    """Where splits of about ``keys`` keys begin, and the end of the last."""
    splits = max(1, round((end - begin) / keys))
    inner = {
        (begin + (end - begin) * split // splits) // align * align for split in range(1, splits)
    }
    return sorted({begin, end, *(edge for edge in inner if begin < edge < end)})
