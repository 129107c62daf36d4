"""Numbers that are known as far as they were printed: the interval that rounding leaves."""

from __future__ import annotations

from dataclasses import dataclass

#: Names of figures that are printed with two decimals by the engines that print them.
_UNITS = ("gib", "gb", "mib", "mb", "kib", "pct", "concurrency", "self", "cross", "pad")
#: What "about" is taken to mean where a thread gives a figure in words.
_ABOUT = 0.01
#: Room for the last bit of a float.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Span:
    """Every value from ``low`` to ``high``."""

    low: float
    high: float

    @classmethod
    def at(cls, value: float) -> Span:
        """A value that is known exactly."""
        return cls(value, value)

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Span) -> Span:
        return Span(self.low - other.high, self.high - other.low)

    def scaled(self, factor: float) -> Span:
        """Every value times a factor above 0."""
        return Span(self.low * factor, self.high * factor)

    def meets(self, other: Span) -> bool:
        """Whether some value lies in both."""
        slack = _SLACK * max(1.0, abs(self.high), abs(other.high))
        return self.low <= other.high + slack and other.low <= self.high + slack

    def __str__(self) -> str:
        if self.low == self.high:
            return _shown(self.low)
        return f"{_shown(self.low)} to {_shown(self.high)}"


def printed(name: str, value: float, decimals: int = 2) -> Span:
    """What a figure can have been before it was printed.

    Args:
        name: The figure's name, which tells its unit.
        value: As it was printed.
        decimals: Least number of decimals that the engine prints of a figure with a unit; JSON
            drops zeros at the end, so a shorter number may still be one of two decimals.
    """
    if name.endswith("_approx"):
        return Span(value * (1 - _ABOUT), value * (1 + _ABOUT))
    if isinstance(value, int):
        half = 0.5 if any(part in _UNITS for part in name.split("_")) else 0.0
        return Span(value - half, value + half)
    digits = max(decimals, len(repr(value).partition(".")[2]))
    half = 0.5 * 10**-digits
    return Span(value - half, value + half)


def _shown(value: float) -> str:
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.4f}"
