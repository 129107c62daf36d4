"""What a diagnosis is, and what one may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Any, Literal

from kvhouse.doctor.case import Derived
from kvhouse.doctor.diagnoses.levers import lever
from kvhouse.doctor.facts import Fact, Facts
from kvhouse.doctor.log import Log
from kvhouse.doctor.planned import Planned
from kvhouse.spec.model import ModelSpec
from kvhouse.units import GIB

Severity = Literal["error", "warning", "note"]
#: Risks of a remedy: none, little, some, and other hardware or another run of the service.
NONE, LITTLE, SOME, MUCH = range(4)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that would help.

    Attributes:
        code: Its text in the catalogue.
        flag: Exactly what to give to the engine; empty where it is no setting.
        risk: 0 for none to 3 for other hardware.
        values: What the text has in it.
        before: Requests of full length at once as it is, where the planner can tell.
        after: The same with the change.
    """

    code: str
    flag: str
    risk: int
    values: tuple[tuple[str, str], ...] = ()
    before: Fraction | None = None
    after: Fraction | None = None

    @property
    def gained(self) -> int | None:
        """Whole requests gained; None where it cannot be told."""
        if self.before is None or self.after is None:
            return None
        return floor(self.after) - floor(self.before)

    @property
    def rank(self) -> tuple[float, int]:
        """Sorts by requests gained per risk, then by risk."""
        gained = self.gained
        return (0.0 if gained is None else -gained / (1 + self.risk), self.risk)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause, what shows it, and what to do.

    Attributes:
        code: Its texts in the catalogue.
        severity: Whether it stops the server, costs something, or is good to know.
        values: What the texts have in them.
        evidence: The facts that show it.
        remedies: What would help, the best first.
    """

    code: str
    severity: Severity
    values: tuple[tuple[str, str], ...] = ()
    evidence: tuple[Fact, ...] = ()
    remedies: tuple[Remedy, ...] = ()


@dataclass(frozen=True, slots=True)
class Patient:
    """All that a diagnosis may look at.

    Attributes:
        log: The log.
        spec: The model.
        derived: The planner's figures beside the log's.
        planned: The server by the planner's rules.
        given: Whether the user named the model.
        named: The catalogue's model of the name in the log, where the user named one.
        engine: Whose log it is.
    """

    log: Log
    spec: ModelSpec | None
    derived: Derived
    planned: Planned | None
    given: bool = False
    named: ModelSpec | None = None
    engine: str = field(init=False)

    def __post_init__(self) -> None:
        """Take over the engine's name, which finding out takes a sum."""
        object.__setattr__(self, "engine", self.log.engine)

    @property
    def facts(self) -> Facts:
        """The log's facts."""
        return self.log.facts

    def has_error(self, *names: str) -> bool:
        """Whether the log ends in one of these errors."""
        return any(fact.value in names for fact in self.facts.all("error"))

    def evidence(self, *names: str) -> tuple[Fact, ...]:
        """The facts of these names, in the order of lines, one for each text."""
        found: dict[tuple[int, str], Fact] = {}
        for name in names:
            chosen = self.facts.one(name)
            series = self.facts.series.get(name)
            for fact in (chosen, series.peak if series is not None else None):
                if fact is not None:
                    found.setdefault((fact.line, fact.text), fact)
        return tuple(sorted(found.values(), key=lambda fact: fact.line))

    def change(
        self,
        code: str,
        name: str,
        risk: int,
        value: object = "",
        **changes: Any,  # noqa: ANN401
    ) -> Iterable[Remedy]:
        """A remedy by one of the engine's settings; nothing where it has no such setting.

        Args:
            code: The text.
            name: The lever, a key of ``levers``.
            risk: See ``Remedy``.
            value: What the flag is set to.
            changes: The planner's options that change, to see what would be gained.
        """
        flag = lever(self.engine, name, value)
        if flag is None:
            return
        before = after = None
        if self.planned is not None and changes:
            before, after = self.planned.requests(), self.planned.requests(**changes)
        yield Remedy(code, flag, risk, (("value", str(value)),), before, after)


Rule = Callable[[Patient], Iterable[Diagnosis]]


def ranked(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """Remedies with the most requests gained per risk first."""
    return tuple(sorted(remedies, key=lambda remedy: remedy.rank))


def gib(count: float) -> str:
    """Bytes in GiB."""
    return f"{count / GIB:.2f} GiB"


def whole(count: float) -> str:
    """A whole number with commas."""
    return f"{int(count):,}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
