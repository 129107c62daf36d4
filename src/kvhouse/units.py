"""Sizes as people write and read them. Inside kvhouse every size is an integer of bytes."""

from __future__ import annotations

import re

from kvhouse.errors import KvhouseError

#: A number and a unit of bytes, and nothing else; pydantic would overlook what follows them.
_SIZE = re.compile(r"\s*\d+(\.\d+)?\s*([kmgtp]i?)?b?\s*", re.IGNORECASE)

#: No memory is larger than this: 1 PiB.
MOST_BYTES = 2**50


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


def bytes_text(size: int) -> str:
    """Show a size in binary units: ``1.5 GiB``, ``22.5 KiB``, ``640 B``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:,.4g} {unit}"


def seconds_text(seconds: float) -> str:
    """Show a duration: ``12.3 s``, ``4.56 ms``, ``78.9 µs``."""
    unit = "s"
    for smaller in ("ms", "µs"):
        if seconds >= 0.9995:
            break
        seconds, unit = seconds * 1000, smaller
    return f"{seconds:,.0f} {unit}" if seconds >= 100 else f"{seconds:.3g} {unit}"
