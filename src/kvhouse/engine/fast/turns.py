"""Cosines and sines of all positions, computed once by the model's own rotary module."""

from __future__ import annotations

import torch

from kvhouse.engine.fast.ends import Ends
from kvhouse.engine.fast.vocabulary import NotUnderstood
from kvhouse.engine.fast.watch import Arguments

#: Positions that are computed at first.
_FIRST = 1024


class TurnTable:
    """Float32 ``[positions, size / 2]`` of cosines and of sines, longer as positions are met.

    Args:
        ends: What has the rotary module.
        how: With which arguments it is asked.
        most: Positions at most: those of the longest request.

    Attributes:
        size: Elements of a head that are turned.

    Raises:
        NotUnderstood: It turns other pairs than elements half a vector apart.
    """

    def __init__(self, ends: Ends, how: Arguments, most: int) -> None:
        self._ends, self._how, self._most = ends, how, most
        self._tables = self._computed(min(_FIRST, most))
        self.size = 2 * self._tables[0].shape[1]

    def fill(
        self, positions: torch.Tensor, longest: int, cosines: torch.Tensor, sines: torch.Tensor
    ) -> None:
        """Put the rows of these positions, the largest below ``longest``, into the first rows."""
        count = len(self._tables[0])
        if longest > count:
            self._tables = self._computed(max(longest, min(2 * count, self._most)))
        for table, target in zip(self._tables, (cosines, sines), strict=True):
            torch.index_select(table, 0, positions, out=target[: len(positions)])

    def _computed(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        more, named = self._how
        like = torch.zeros(1, count, 1)
        pair = self._ends.rotary(like, torch.arange(count)[None], *more, **dict(named))
        halves = [table[0].float().chunk(2, dim=-1) for table in pair]
        if any(low.shape != high.shape or not torch.equal(low, high) for low, high in halves):
            raise NotUnderstood("its rotary embedding is not compiled")
        return halves[0][0].contiguous(), halves[1][0].contiguous()
