"""What every pool of block ids can do."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Pool(ABC):
    """Free ids and how they are taken.

    Attributes:
        blocks: Number of ids.
        free_blocks: Number of ids that nobody holds.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = self.free_blocks = blocks

    @property
    def largest(self) -> int:
        """The most ids that one ``take`` could give if nobody held any."""
        return self.blocks

    @abstractmethod
    def free_ids(self) -> list[int]:
        """Every free id."""

    @abstractmethod
    def take(self, count: int) -> list[int] | None:
        """Take ``count`` ids, or none at all and return None."""

    @abstractmethod
    def give_back(self, ids: list[int]) -> None:
        """Free ids that one ``take`` gave."""

    def unusable(self, count: int) -> int:
        """Free ids that are enough for ``count``, yet cannot be given as they lie: here none."""
        del count
        return 0
