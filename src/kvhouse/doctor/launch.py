"""What a server was started with, from the lines in which engines repeat it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from kvhouse.doctor.facts import Value
from kvhouse.doctor.line import Read, Reading

#: A value of an option is read up to so many characters.
_MOST_VALUE = 200
_WORDS = {"True": True, "False": False, "true": True, "false": False}
#: What engines write for an option that was not given.
_UNSET = frozenset({"None", "null", "auto", ""})


def option_value(text: str) -> Value | None:
    """A value as it is written in Python, Rust or on a command line; None where it is unset."""
    text = text.strip("'\"` ")
    if text in _UNSET:
        return None
    if text in _WORDS:
        return _WORDS[text]
    text = text.removeprefix("torch.")
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def fields(names: Mapping[str, str]) -> Reading:
    """Reads ``name=value``, ``name: Some(value)`` and ``'name': value`` after the match's start.

    Args:
        names: For each name in the line, the fact's.
    """

    def reading(match: re.Match[str], _memory: dict[str, Value]) -> Iterable[Read]:
        return _pairs(_field_regex(tuple(names)), names, match.string[match.start() :])

    return reading


def flags(names: Mapping[str, str]) -> Reading:
    """Reads ``--name value`` and ``--name=value`` of a command line; a flag alone is true."""

    def reading(match: re.Match[str], _memory: dict[str, Value]) -> Iterable[Read]:
        return _pairs(_flag_regex(tuple(names)), names, match.string[match.start() :])

    return reading


def _pairs(regex: re.Pattern[str], names: Mapping[str, str], text: str) -> Iterable[Read]:
    seen = set()
    for found in regex.finditer(text):
        name = names[found[1]]
        value = True if found[2] is None else option_value(found[2])
        # The first counts: what follows may be the options of a part, such as a draft model's.
        if value is not None and name not in seen:
            seen.add(name)
            yield name, value, found[0]


@cache
def _field_regex(names: tuple[str, ...]) -> re.Pattern[str]:
    known = "|".join(sorted(names, key=len, reverse=True))
    return re.compile(
        rf"(?<![\w.])['\"]?({known})['\"]?\s{{0,2}}[=:]\s{{0,2}}(?:Some\(\s{{0,8}})?"
        rf"('[^']{{0,{_MOST_VALUE}}}'|\"[^\"]{{0,{_MOST_VALUE}}}\"|[^'\",(){{}}\[\]\s]{{1,{_MOST_VALUE}}})"
    )


@cache
def _flag_regex(names: tuple[str, ...]) -> re.Pattern[str]:
    known = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return re.compile(
        rf"(?<!\S)({known})(?:(?:=|\s{{1,4}})(?!-{{1,2}}[a-z])([^\s'\"\\]{{1,{_MOST_VALUE}}}|'[^']{{0,{_MOST_VALUE}}}'))?"
        rf"(?=\s|$|[\\'\"])"
    )
