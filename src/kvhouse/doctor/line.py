"""How an engine's line is recognised, and what facts it gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvhouse.doctor.facts import Kind, Value

#: A whole number with or without commas, and a number with or without a fraction. Bounded, as all
#: quantifiers in line formats are: a log is untrusted, and no regex may take longer than its line.
COUNT = r"(\d{1,3}(?:,\d{3}){1,5}(?!\d)|\d{1,18})"
NUMBER = r"(-?\d{1,12}(?:\.\d{1,9})?)"

#: A fact's name and value, and the part of the line that says it where that is not all of it.
Read = tuple[str, Value, str]
#: What a line that needs more than its groups gives; ``memory`` lives as long as a worker's run.
Reading = Callable[[re.Match[str], dict[str, Value]], Iterable[Read]]


@dataclass(frozen=True, slots=True)
class Line:
    """One line format.

    Attributes:
        engine: Who prints it.
        anchor: Bytes that whole chunks of a log are searched for; few lines share each anchor.
        needle: Bytes that the line must have besides, before the regex is tried.
        regex: What is read.
        names: The fact of each group, in order; an empty name skips its group.
        sets: Facts that the line gives by being there; of a series, values.
        kind: ``series`` for figures that are printed again and again.
        reading: In place of ``names``, for lines that depend on lines before them.
        starts: Whether a second such line of a worker means that the server was started again.
        only: Whether a line with the needle says nothing else, so that no other format is tried.
        anywhere: Whether it is looked for in lines that repeat what users sent, too.
    """

    engine: str
    anchor: bytes
    needle: bytes
    regex: re.Pattern[str]
    names: tuple[str, ...] = ()
    sets: tuple[tuple[str, Value], ...] = ()
    kind: Kind = "fact"
    reading: Reading | None = None
    starts: bool = False
    only: bool = False
    anywhere: bool = False

    def read(self, match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
        """The facts of a line that matched."""
        for name, value in self.sets:
            yield name, value, ""
        if self.reading is not None:
            yield from self.reading(match, memory)
            return
        for name, text in zip(self.names, match.groups(), strict=False):
            if name and text is not None:
                yield name, value_of(name, text), ""


#: Facts that are words whatever they look like.
WORDS = frozenset({"model", "engine_version", "build", "dtype", "kv_cache_dtype", "error"})


def value_of(name: str, text: str) -> Value:
    """A group as a number, or as yes or no, where it looks like one."""
    text = text.strip()
    if name in WORDS:
        return text
    if text in ("true", "false"):
        return text == "true"
    digits = text.replace(",", "")
    try:
        return int(digits) if digits.lstrip("-").isdigit() else float(digits)
    except ValueError:
        return text


def line(
    engine: str,
    anchor: str,
    needle: str,
    regex: str,
    names: str = "",
    *,
    sets: dict[str, Value] | None = None,
    kind: Kind = "fact",
    reading: Reading | None = None,
    starts: bool = False,
    only: bool = False,
    anywhere: bool = False,
) -> Line:
    """A line format from texts: ``N`` and ``F`` between angle brackets stand for numbers.

    Args:
        engine: Who prints it.
        anchor: See ``Line``.
        needle: See ``Line``; empty where the anchor is enough.
        regex: With ``<N>`` for a whole number and ``<F>`` for any number.
        names: Names of the groups, with spaces between; ``-`` skips one.
        sets: See ``Line``.
        kind: See ``Line``.
        reading: See ``Line``.
        starts: See ``Line``.
        only: See ``Line``.
        anywhere: See ``Line``.
    """
    pattern = regex.replace("<N>", COUNT).replace("<F>", NUMBER)
    return Line(
        engine=engine,
        anchor=anchor.encode(),
        needle=(needle or anchor).encode(),
        regex=re.compile(pattern),
        names=tuple("" if name == "-" else name for name in names.split()),
        sets=tuple((sets or {}).items()),
        kind=kind,
        reading=reading,
        starts=starts,
        only=only,
        anywhere=anywhere,
    )
