"""The grid of a sweep: what is combined with what, and the order of its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product

from kvhouse.core.policy import PAGED, get_policy
from kvhouse.errors import KvhouseError
from kvhouse.formats import get_format
from kvhouse.layout import DEFAULT_BLOCK_SIZE
from kvhouse.spec.fields import show

#: Cells of the largest grid.
MOST_CELLS = 100_000


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate of arrivals.

    Attributes:
        value: Requests per second, or a factor on the trace's own rate.
        relative: Whether it is a factor.

    Raises:
        KvhouseError: ``value`` is not a number above 0.
    """

    value: float = 1.0
    relative: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise KvhouseError(f"rate {self.value}: give requests per second above 0, or 1.5x")

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read ``2.5``, requests per second, or ``1.5x``, so many times the trace's own rate.

        Raises:
            KvhouseError: It is neither.
        """
        number = text.strip().removesuffix("x")
        try:
            return cls(float(number), relative=number != text.strip())
        except ValueError:
            raise KvhouseError(
                f"rate {show(text)}: write requests per second, as 2.5, or a factor, as 1.5x"
            ) from None

    def on(self, own: float | None) -> tuple[float | None, float]:
        """Requests per second, and the factor on a trace that has ``own`` of them.

        Raises:
            KvhouseError: All requests arrive at once, so that there is no rate to change.
        """
        if own is None:
            if self == Rate():
                return None, 1.0
            raise KvhouseError("all requests arrive at once: there is no rate to change")
        return (own * self.value, self.value) if self.relative else (self.value, self.value / own)


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay of a sweep.

    Attributes:
        index: Its place in the order of the grid.
        model: As it was named.
        device: As it was named.
        policy: One of ``core.policy.POLICIES``.
        kv_format: How keys and values are stored.
        block_size: Tokens per block.
        rate: Of arrivals.
    """

    index: int
    model: str
    device: str
    policy: str
    kv_format: str
    block_size: int
    rate: Rate


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of these, the rates innermost.

    Raises:
        KvhouseError: An axis is empty or has a value twice, a value is unknown, or there are over
            100,000 cells.
    """

    models: tuple[str, ...]
    devices: tuple[str, ...]
    policies: tuple[str, ...] = (PAGED,)
    kv_formats: tuple[str, ...] = ("bf16",)
    block_sizes: tuple[int, ...] = (DEFAULT_BLOCK_SIZE,)
    rates: tuple[Rate, ...] = (Rate(),)

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", tuple(map(get_policy, self.policies)))
        for name in self.kv_formats:
            get_format(name)
        for field in fields(self):
            _check_axis(field.name, getattr(self, field.name))
        if min(self.block_sizes) < 1:
            raise KvhouseError(f"block size {min(self.block_sizes)}: must be at least 1")
        if len(self) > MOST_CELLS:
            raise KvhouseError(f"a grid of {len(self):,} cells: give at most {MOST_CELLS:,}")

    def __len__(self) -> int:
        """Cells."""
        return math.prod(len(getattr(self, field.name)) for field in fields(self))

    def cells(self) -> list[Cell]:
        """All of them, in order."""
        axes = [getattr(self, field.name) for field in fields(self)]
        return [Cell(index, *values) for index, values in enumerate(product(*axes))]


def _check_axis(name: str, values: Sequence[object]) -> None:
    if not values or len(set(values)) < len(values):
        raise KvhouseError(f"{name.replace('_', ' ')}: give different ones, at least one")
