"""Sizes as people write and read them. Inside kvhouse every size is an integer of bytes."""

from __future__ import annotations

import re
from decimal import Decimal

from kvhouse.errors import KvhouseError

#: Bytes of a MiB, and of a GiB.
MIB, GIB = 2**20, 2**30

#: A number and a unit of bytes, and nothing else; pydantic would overlook what follows them.
_SIZE = re.compile(r"\s*\d+(\.\d+)?\s*([kmgtp]i?)?b?\s*", re.IGNORECASE)

#: No memory is larger than this: 1 PiB.
MOST_BYTES = 2**50

#: A number and a unit of time, and nothing else.
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|µs|ms|s|min|m|h)\s*")
_SECONDS = {
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "m": Decimal(60),
    "h": Decimal(3600),
}

#: No duration is longer than this: about 31 years.
MOST_SECONDS = 10**9


def parse_bytes(text: str) -> int:
    """Read ``2GiB`` (2³¹), ``2GB`` (2·10⁹), ``512MiB`` or a plain number of bytes.

    Raises:
        KvhouseError: Not a size, less than one byte, or more than 1 PiB.
    """
    from pydantic import ByteSize, TypeAdapter

    if len(text) > 40 or not _SIZE.fullmatch(text):
        raise KvhouseError(f"{text[:40]!r} is not a size: write for example 2GiB, 2GB or 512MiB")
    size = int(TypeAdapter(ByteSize).validate_python(text.strip()))
    if not 1 <= size <= MOST_BYTES:
        raise KvhouseError(f"a size of {text.strip()} is not between 1 byte and 1 PiB")
    return size


def parse_rate(text: str) -> float:
    """Read ``32GB/s`` (32·10⁹) or ``500MiB/s`` as bytes per second.

    Raises:
        KvhouseError: Not a rate, less than one byte per second, or more than 1 PiB/s.
    """
    size, slash, second = text.strip().rpartition("/")
    if not slash or second != "s" or not _SIZE.fullmatch(size):
        raise KvhouseError(f"{text[:40]!r} is not a rate: write for example 32GB/s or 500MiB/s")
    return float(parse_bytes(size))


def parse_seconds(text: str) -> float:
    """Read ``50ms``, ``1.5s``, ``2min``, ``1h`` or ``200us`` as seconds.

    Raises:
        KvhouseError: Not a duration, none at all, or longer than 31 years.
    """
    match = _DURATION.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        raise KvhouseError(f"{text[:40]!r} is not a duration: write for example 50ms, 1.5s or 2min")
    seconds = float(Decimal(match[1]) * _SECONDS[match[2]])  # 10us is 1e-05, to the last bit
    if not 0 < seconds <= MOST_SECONDS:
        raise KvhouseError(f"a duration of {text.strip()} is not above 0 and at most 31 years")
    return seconds


def bytes_text(size: int) -> str:
    """Show a size in binary units: ``1.5 GiB``, ``22.5 KiB``, ``640 B``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:,.4g} {unit}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 block``, ``1,024 blocks``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def seconds_text(seconds: float) -> str:
    """Show a duration: ``12.3 s``, ``4.56 ms``, ``78.9 µs``."""
    unit = "s"
    for smaller in ("ms", "µs"):
        if seconds >= 0.9995:
            break
        seconds, unit = seconds * 1000, smaller
    return f"{seconds:,.0f} {unit}" if seconds >= 100 else f"{seconds:.3g} {unit}"
