"""One case, read with care: nulls are unknown, and nothing is filled by guess."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvhouse.planner.engines.cases.span import Span, printed
from kvhouse.spec.model import ModelSpec

#: Words for units; engines that print GB and MB mostly mean GiB and MiB.
_SAME_UNIT = {
    "": frozenset[str](),
    "gib": frozenset({"gib", "gb"}),
    "mib": frozenset({"mib", "mb"}),
    "bytes": frozenset({"bytes"}),
}
_ALL_UNITS = frozenset(word for words in _SAME_UNIT.values() for word in words)


class Missing(Exception):
    """An input that the case does not state, and without which nothing can be computed."""


@dataclass(frozen=True, slots=True)
class Check:
    """One reported figure beside ours."""

    name: str
    printed: str
    ours: str
    agrees: bool


@dataclass(frozen=True, slots=True)
class Case:
    """One log.

    Attributes:
        values: The JSON object.
        decimals: Least decimals of printed figures with a unit.
        assumed: What is tried for inputs that are not stated.
        spec: The model, where it is known by more than the numbers of ``config``.
    """

    values: Mapping[str, Any]
    decimals: int = 2
    assumed: Mapping[str, Any] = field(default_factory=dict)
    spec: ModelSpec | None = None

    def part(self, name: str) -> Mapping[str, Any]:
        """``config``, ``flags``, ``reported`` or ``hw``; empty where it is null."""
        value = self.values.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def engine(self) -> str:
        """The engine's name, in lower case."""
        return str(self.values.get("engine") or "").lower()

    @property
    def version(self) -> str:
        """The engine's version as the thread has it; empty where it is unknown."""
        return str(self.values.get("engine_version") or "")

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.values.get("model") or "")

    @property
    def arch(self) -> frozenset[str]:
        """Tags of the model's and the run's kind."""
        tags = self.values.get("arch")
        return frozenset(map(str, tags)) if isinstance(tags, list) else frozenset()

    def flag(self, *names: str) -> Any:  # noqa: ANN401 - JSON
        """The first of several names of a flag that is stated; None if none is."""
        return _first(self.part("flags"), names)

    def size(self, *names: str) -> int | None:
        """The same for a whole number."""
        return _whole(self.flag(*names))

    def text(self, *names: str) -> str | None:
        """The same for a word."""
        value = self.flag(*names)
        return value if isinstance(value, str) else None

    def amount(self, *names: str) -> float | None:
        """The same for a number above 0 that need not be whole."""
        value = number(self.flag(*names))
        return float(value) if value is not None and value > 0 else None

    def reported(self, *names: str) -> Any:  # noqa: ANN401 - JSON
        """The first of several names of a reported figure; None if none is."""
        return _first(self.part("reported"), names)

    def count(self, *names: str) -> int | None:
        """The same for a whole number, which is exact."""
        return _whole(self.reported(*names))

    def span(self, *names: str) -> Span | None:
        """The interval that a reported figure's rounding leaves; None where it is not reported."""
        for name in names:
            value = number(self.part("reported").get(name))
            if value is not None:
                return printed(name, value, self.decimals)
        return None

    def check(self, name: str, ours: Span | None) -> list[Check]:
        """Compare one reported figure with ours; nothing where either is not known."""
        value = number(self.part("reported").get(name))
        if ours is None or value is None:
            return []
        agrees = printed(name, value, self.decimals).meets(ours)
        return [Check(name, f"{value:,}", str(ours), agrees)]

    def any_check(self, names: tuple[str, ...], ours: Span | None) -> list[Check]:
        """The same for each of several names of one figure."""
        return [check for name in names for check in self.check(name, ours)]

    def one_of(self, names: tuple[str, ...], ours: Sequence[Span]) -> list[Check]:
        """The same where a name may mean one of several figures; the first that agrees counts."""
        checks = []
        for name in names:
            tried = [check for span in ours for check in self.check(name, span)]
            checks += [next((one for one in tried if one.agrees), *tried[:1])] if tried else []
        return checks

    def like(self, *words: str, unit: str = "", without: str = "") -> tuple[str, ...]:
        """Names of reported figures that have every word, in the unit and without others.

        Args:
            words: Each a word, or several that mean the same, as ``"weight|weights"``.
            unit: ``gib``, ``mib`` or ``bytes``; none for counts.
            without: Words that would make it another figure.
        """
        names = []
        for name in self.part("reported"):
            own = set(name.lower().split("_"))
            units = own & _ALL_UNITS
            wanted = all(own & set(word.split("|")) for word in words)
            if wanted and units == (own & _SAME_UNIT[unit]) and not own & set(without.split("|")):
                names.append(name)
        return tuple(name for name in names if not unit or set(name.split("_")) & _SAME_UNIT[unit])

    def sequences(self) -> tuple[int, int] | None:
        """Sequences and streams where a log prints both, as ``4/1``; None where it does not."""
        text = self.reported("seqs")
        found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text) if isinstance(text, str) else None
        return (int(found[1]), int(found[2])) if found and int(found[1]) else None

    @property
    def one_device(self) -> bool:
        """Whether the hardware is known to be a single device."""
        return self.part("hw").get("n") == 1

    def month(self) -> tuple[int, int] | None:
        """Year and month in the version's text; month 1 where only a year is given."""
        found = re.search(r"(20\d\d)(?:-(\d\d))?", self.version)
        return (int(found[1]), int(found[2] or 1)) if found else None


#: Larger than anything that is counted.
_MOST = 2**60


def number(value: object) -> float | int | None:
    """A number that can be compared; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) < _MOST else None


def _whole(value: object) -> int | None:
    """A whole number that is believed."""
    found = number(value)
    return found if isinstance(found, int) and found >= 0 else None


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:  # noqa: ANN401 - JSON
    return next((values[name] for name in names if values.get(name) is not None), None)
