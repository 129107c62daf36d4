"""One line of a trace file, and the two public formats of such lines.

A parser takes a line's text and returns what it says. It raises ``ValueError`` with the reason; the
reader adds the file and the line number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from kvhouse.replayer.trace_request import MOONCAKE_BLOCK, MOST_TOKENS
from kvhouse.spec.fields import show

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
#: Hash ids are kept in 8 bytes.
MOST_HASH_ID = 2**63 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = re.compile(
    r"(?P<second>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))?"
    r"(?P<offset>Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)


class Line(NamedTuple):
    """What one line says: a time, in the units of its format, and the rest of a request."""

    time: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    hash_block: int = MOONCAKE_BLOCK
    prefix_id: str | None = None
    prefix_tokens: int = 0
    tenant: str | None = None
    priority: int = 0
    cached_tokens: int = 0


#: None stands for a line that is no request to be served.
LineParser = Callable[[str], Line | None]


def parse_azure(text: str) -> Line:
    """Parse a row of an Azure LLM inference trace: ``TIMESTAMP,ContextTokens,GeneratedTokens``."""
    fields = text.split(",")
    if len(fields) != 3:
        raise ValueError(f"{len(fields)} fields where {AZURE_HEADER} are expected")
    return Line(
        nanoseconds_of(fields[0], "TIMESTAMP"),
        _tokens("ContextTokens", _digits("ContextTokens", fields[1])),
        _tokens("GeneratedTokens", _digits("GeneratedTokens", fields[2])),
    )


def parse_mooncake(text: str) -> Line:
    """Parse a line of a Mooncake trace: a JSON object with its time stamp in milliseconds."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"not a JSON object: {show(text)}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"not a JSON object: {show(text)}")
    line = Line(
        _milliseconds(_field(entry, "timestamp")),
        _tokens("input_length", _field(entry, "input_length")),
        _tokens("output_length", _field(entry, "output_length")),
        hash_ids_of(entry.get("hash_ids", [])),
    )
    blocks = -(-line.prompt_tokens // MOONCAKE_BLOCK)
    if len(line.hash_ids) > blocks:
        raise ValueError(f"{len(line.hash_ids):,} hash_ids for {blocks:,} blocks of the prompt")
    return line


def nanoseconds_of(text: str, name: str) -> int:
    """Nanoseconds since 1970, without rounding; a time without an offset is UTC.

    Raises:
        ValueError: The text of ``name`` is no time.
    """
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        second = datetime.fromisoformat(match["second"] + (match["offset"] or "Z"))
    except ValueError:
        raise ValueError(
            f"{name} is {show(text)}, not a time like 2023-11-16 18:15:46.6805900"
        ) from None
    whole = (second - _EPOCH) // timedelta(seconds=1)
    return whole * 10**9 + int((match["fraction"] or "").ljust(9, "0"))


def _digits(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.removeprefix("-").isdigit() and len(digits) <= 20):
        raise ValueError(f"{name} is {show(text)}, not a whole number")
    return int(digits)


def _field(entry: dict[str, Any], name: str) -> object:
    if name not in entry:
        raise ValueError(f"{name} is missing")
    return entry[name]


def _tokens(name: str, value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{name} is {show(value)}, not a whole number")
    if not 1 <= value <= MOST_TOKENS:
        raise ValueError(f"{name} is {show(value)}: must be from 1 to {MOST_TOKENS:,} tokens")
    return value


def _milliseconds(value: object) -> int:
    if type(value) is int and 0 <= value < 10**15:
        return value * 10**6
    if type(value) is float and math.isfinite(value) and 0 <= value < 10**15:
        return round(value * 10**6)
    raise ValueError(f"timestamp is {show(value)}, not a number of milliseconds from 0 on")


def hash_ids_of(value: object) -> tuple[int, ...]:
    """Check hash ids.

    Raises:
        ValueError: Not a list of whole numbers that 8 bytes hold.
    """
    if isinstance(value, list) and all(
        type(item) is int and 0 <= item <= MOST_HASH_ID for item in value
    ):
        return tuple(value)
    raise ValueError(f"hash_ids is {show(value)}, not a list of whole numbers from 0 to 2^63 - 1")
