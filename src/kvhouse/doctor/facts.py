"""What a log says, as typed facts that know their line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Value = int | float | str | bool
Kind = Literal["fact", "series"]

#: Workers that are told apart; a log with more of them is not one server's.
MOST_WORKERS = 1024

_UNITS = (
    ("_gib", "GiB"),
    ("_gb", "GB"),
    ("_mib", "MiB"),
    ("_bytes", "bytes"),
    ("_pct", "%"),
    ("_tokens", "tokens"),
    ("_len", "tokens"),
    ("_seconds", "s"),
    ("_seconds_mean", "s"),
    ("_rate", "tokens/s"),
    ("_blocks", "blocks"),
    ("_cells", "cells"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure or word of a log.

    Attributes:
        name: What it is; sizes end in their unit as it was printed (SGLang's ``gb`` are GiB).
        value: As it was printed.
        line: Number of its line, from 1.
        engine: Which engine prints such lines.
        worker: Which of several workers said it; empty where the line names none.
        text: The part of the line that says it, without secrets and control characters.
    """

    name: str
    value: Value
    line: int
    engine: str
    worker: str
    text: str

    @property
    def unit(self) -> str:
        """The unit that the name ends in; empty for words and counts."""
        return next((unit for end, unit in _UNITS if self.name.endswith(end)), "")

    def to_dict(self) -> dict[str, Value]:
        """The fact as plain values with stable keys; yes and no as words."""
        return {
            "name": self.name,
            "value": str(self.value).lower() if isinstance(self.value, bool) else self.value,
            "unit": self.unit,
            "line": self.line,
            "engine": self.engine,
            "worker": self.worker,
            "text": self.text,
        }


@dataclass(slots=True)
class Series:
    """A figure that is printed again and again, kept as its sums.

    Attributes:
        count: How often it was printed.
        total: Sum of the values.
        least: The smallest value.
        most: The largest value.
        last: The last value.
        peak: The fact with the largest value.
    """

    count: int
    total: float
    least: float
    most: float
    last: float
    peak: Fact

    @property
    def mean(self) -> float:
        """The mean of all values."""
        return self.total / self.count

    def to_dict(self) -> dict[str, Value]:
        """The series as plain values with stable keys."""
        return {
            "name": self.peak.name,
            "unit": self.peak.unit,
            "count": self.count,
            "least": self.least,
            "mean": self.mean,
            "most": self.most,
            "last": self.last,
            "line_of_most": self.peak.line,
        }


@dataclass(slots=True)
class Facts:
    """All facts of one run of a server.

    Attributes:
        by_name: For each name the last fact of each worker.
        series: For each name of a repeated figure its sums over all workers.
    """

    by_name: dict[str, dict[str, Fact]] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)

    def observe(self, name: str, value: float, line: int, engine: str, text: str) -> None:
        """Take in one value of a series."""
        self.observe_all(name, (value,), engine, lambda _: (line, text))

    def observe_all(
        self,
        name: str,
        values: Sequence[float],
        engine: str,
        said: Callable[[int], tuple[int, str]],
    ) -> None:
        """Take in values of a series, at least one.

        Args:
            name: What they are.
            values: The values, in the order of lines.
            engine: Who prints them.
            said: For a value's index, its line and text; asked of the largest only.
        """
        most = max(values)
        known = self.series.get(name)
        if known is None or most > known.most:
            line, text = said(values.index(most))
            peak = Fact(name, most, line, engine, "", text)
        else:
            peak = known.peak
        count, total, least = len(values), sum(values), min(values)
        if known is not None:
            count, total = known.count + count, known.total + total
            least, most = min(known.least, least), max(known.most, most)
        self.series[name] = Series(count, total, least, most, values[-1], peak)

    def add(self, fact: Fact) -> None:
        """Take in one fact."""
        workers = self.by_name.setdefault(fact.name, {})
        if fact.worker in workers or len(workers) < MOST_WORKERS:
            workers[fact.worker] = fact

    def __bool__(self) -> bool:
        return bool(self.by_name or self.series)

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def all(self, name: str) -> tuple[Fact, ...]:
        """The facts of one name, by worker."""
        return tuple(self.by_name.get(name, {}).values())

    def one(self, *names: str) -> Fact | None:
        """The fact of the first name that is there; of several workers the least, else the last.

        The least, because engines give every worker what the poorest of them has room for.
        """
        for name in names:
            found = self.all(name)
            numbers = [fact for fact in found if not isinstance(fact.value, str | bool)]
            if numbers:
                return min(numbers, key=lambda fact: _number(fact.value))
            if found:
                return found[-1]
        return None

    def number(self, *names: str) -> float | None:
        """The same as a number; None where it is absent or a word."""
        fact = self.one(*names)
        return None if fact is None or isinstance(fact.value, str) else _number(fact.value)

    def count(self, *names: str) -> int | None:
        """The same as a whole number."""
        value = self.number(*names)
        return None if value is None else int(value)

    def word(self, *names: str) -> str | None:
        """The same as a word."""
        fact = self.one(*names)
        return fact.value if fact is not None and isinstance(fact.value, str) else None

    def bytes(self, *names: str) -> int | None:
        """A size in bytes, by the unit of its name; GB and MB of engines are GiB and MiB."""
        for name in names:
            value = self.number(name)
            if value is not None:
                return int(value * _bytes_of(name))
        return None

    def __iter__(self) -> Iterator[Fact]:
        """Every fact in the order of lines, those that workers agree on once."""
        for name in self.by_name:
            yield from self.told_apart(name)

    def told_apart(self, name: str) -> tuple[Fact, ...]:
        """Facts of one name, one for each value that workers gave."""
        seen: dict[Value, Fact] = {}
        for fact in self.all(name):
            seen.setdefault(fact.value, fact)
        return tuple(seen.values())

    def values(self) -> Mapping[str, Value]:
        """One value for each name, as ``one`` chooses it."""
        found = {name: self.one(name) for name in self.by_name}
        return {name: fact.value for name, fact in found.items() if fact is not None}


def _number(value: Value) -> float:
    return float(value) if not isinstance(value, str) else 0.0


def _bytes_of(name: str) -> int:
    if name.endswith(("_gib", "_gb")):
        return 2**30
    return 2**20 if name.endswith(("_mib", "_mb")) else 1
