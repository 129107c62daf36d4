"""One line of a trace file: the two public formats that kvhouse reads.

A parser takes a line's text and returns its time stamp and lengths. It raises ``ValueError`` with
the reason; the reader adds the file and the line number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
#: More tokens than any request can have; a larger number is a damaged line.
MOST_TOKENS = 10**9

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = re.compile(
    r"(?P<second>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))?"
    r"(?P<offset>Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)


class Line(NamedTuple):
    """What one line says; ``nanoseconds`` counts from any fixed moment."""

    nanoseconds: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


LineParser = Callable[[str], Line]


def parse_azure(text: str) -> Line:
    """Parse a row of an Azure LLM inference trace: ``TIMESTAMP,ContextTokens,GeneratedTokens``."""
    fields = text.split(",")
    if len(fields) != 3:
        raise ValueError(f"{len(fields)} fields where {AZURE_HEADER} are expected")
    return Line(
        _timestamp(fields[0]),
        _tokens("ContextTokens", _digits("ContextTokens", fields[1])),
        _tokens("GeneratedTokens", _digits("GeneratedTokens", fields[2])),
    )


def parse_mooncake(text: str) -> Line:
    """Parse a line of a Mooncake trace: a JSON object with its time stamp in milliseconds."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"not a JSON object: {_show(text)}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"not a JSON object: {_show(text)}")
    return Line(
        _milliseconds(_field(entry, "timestamp")),
        _tokens("input_length", _field(entry, "input_length")),
        _tokens("output_length", _field(entry, "output_length")),
        _hash_ids(entry.get("hash_ids", [])),
    )


def parser_for(first_line: str) -> tuple[LineParser, bool] | None:
    """The parser for a file that begins so, and whether that line is a header; None if unknown."""
    if first_line == AZURE_HEADER:
        return parse_azure, True
    if first_line.startswith("{"):
        return parse_mooncake, False
    return None


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _timestamp(text: str) -> int:
    """Nanoseconds since 1970, without rounding; a time without an offset is UTC."""
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        second = datetime.fromisoformat(match["second"] + (match["offset"] or "Z"))
    except ValueError:
        raise ValueError(
            f"TIMESTAMP is {_show(text)}, not a time like 2023-11-16 18:15:46.6805900"
        ) from None
    whole = (second - _EPOCH) // timedelta(seconds=1)
    return whole * 10**9 + int((match["fraction"] or "").ljust(9, "0"))


def _digits(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.removeprefix("-").isdigit() and len(digits) <= 20):
        raise ValueError(f"{name} is {_show(text)}, not a whole number")
    return int(digits)


def _field(entry: dict[str, Any], name: str) -> object:
    if name not in entry:
        raise ValueError(f"{name} is missing")
    return entry[name]


def _tokens(name: str, value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{name} is {_show(value)}, not a whole number")
    if not 1 <= value <= MOST_TOKENS:
        raise ValueError(f"{name} is {_show(value)}: must be from 1 to {MOST_TOKENS:,} tokens")
    return value


def _milliseconds(value: object) -> int:
    if type(value) is int and 0 <= value < 10**15:
        return value * 10**6
    if type(value) is float and math.isfinite(value) and 0 <= value < 10**15:
        return round(value * 10**6)
    raise ValueError(f"timestamp is {_show(value)}, not a number of milliseconds from 0 on")


def _hash_ids(value: object) -> tuple[int, ...]:
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    raise ValueError(f"hash_ids is {_show(value)}, not a list of whole numbers from 0 on")
