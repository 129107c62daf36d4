"""Cutting a step's work into shares for threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvhouse.engine.kernels.cpu.fields import WORK
from kvhouse.engine.packed import PackedRow
from kvhouse.spec.reach import Reach

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
    """

    blocks: NDArray[np.int64]
    begins: NDArray[np.int64]
    places: NDArray[np.int64]

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
        return cls(blocks, begins, np.stack((blocks[entries], positions % block_size), axis=1))


@dataclass(frozen=True, slots=True)
class Shares:
    """A step's work on one group.

    Attributes:
        works: ``WORK`` records.
        records: Partial results that they leave for each other.
        merges: Counters that they share.
    """

    works: NDArray[np.void]
    records: int
    merges: int


def shares(
    rows: Sequence[PackedRow],
    group: int,
    tables: Tables,
    reach: Reach,
    *,
    tokens: int,
    heads: int,
    threads: int,
    align: int,
) -> Shares:
    """Cut rows into tiles of at most ``tokens`` tokens, and long tiles by their keys.

    Args:
        rows: The step's rows.
        group: Whose tables and starts are meant.
        tables: Those tables.
        reach: What its layers see.
        tokens: Tokens of a row that are worked on together.
        heads: Units that each share is divided into by heads.
        threads: Threads that share the work.
        align: Splits begin at multiples of so many keys.
    """
    tiles = [
        (number, token, min(tokens, packed.row.count - token))
        for number, packed in enumerate(rows)
        for token in range(0, packed.row.count, tokens)
    ]
    spans = []
    for number, token, count in tiles:
        position = rows[number].row.first + token
        spans.append((reach.first(position), position + count))
    weight = sum(
        (end - begin) * count for (begin, end), (_, _, count) in zip(spans, tiles, strict=True)
    )
    most = max(1, weight * heads // (threads * _SHARES))
    found: list[tuple[int, ...]] = []
    records = merges = 0
    for (number, token, count), (begin, end) in zip(tiles, spans, strict=True):
        row = rows[number]
        keys = max(_LEAST_KEYS, -(-most // count))
        edges = _edges(begin, end, keys, align)
        splits = len(edges) - 1
        common = (
            row.start + token,
            count,
            row.row.first + token,
            int(tables.begins[number]),
            row.row.starts[group],
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
    return Shares(works[order], records, merges)


def _edges(begin: int, end: int, keys: int, align: int) -> list[int]:
    """Where splits of about ``keys`` keys begin, and the end of the last."""
    splits = max(1, round((end - begin) / keys))
    inner = {
        (begin + (end - begin) * split // splits) // align * align for split in range(1, splits)
    }
    return sorted({begin, end, *(edge for edge in inner if begin < edge < end)})
