"""Versions of engines, compared as numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show

_FORM = re.compile(r"v?(\d{1,6})(?:\.(\d{1,6}))?(?:\.(\d{1,6}))?")


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A release; ``LATEST`` is after every other."""

    numbers: tuple[int, int, int]

    @classmethod
    def of(cls, text: str | None) -> Version:
        """Read ``0.11``, ``v0.20.1`` or a month, ``2025.4``; None is the latest.

        Raises:
            KvhouseError: It is not of that form.
        """
        if text is None:
            return LATEST
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise KvhouseError(f"engine version {show(text)}: write it like 0.11 or 0.20.1")
        first, second, third = (int(part or 0) for part in found.groups())
        return cls((first, second, third))

    def __lt__(self, other: Version) -> bool:
        return self.numbers < other.numbers

    def __str__(self) -> str:
        return "latest" if self == LATEST else ".".join(map(str, self.numbers))


LATEST = Version((10**6, 0, 0))
