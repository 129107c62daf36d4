"""Sizes as people write and read them. Inside kvhouse every size is an integer of bytes."""

from __future__ import annotations

from kvhouse.errors import KvhouseError


def parse_bytes(text: str) -> int:
    """Read ``2GiB`` (2³¹), ``2GB`` (2·10⁹), ``512MiB`` or a plain number of bytes.

    Raises:
        KvhouseError: Not a size, or less than one byte.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except (ValidationError, OverflowError):
        hint = "write for example 2GiB, 2GB or 512MiB"
        raise KvhouseError(f"{text!r} is not a size: {hint}") from None
    if size < 1:
        raise KvhouseError(f"a size of {text} is less than one byte")
    return size


def bytes_text(size: int) -> str:
    """Show a size in binary units: ``1.50 GiB``, ``22.5 KiB``, ``640 B``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:,.4g} {unit}"


def seconds_text(seconds: float) -> str:
    """Show a duration: ``12.3 s``, ``4.56 ms``, ``78.9 µs``."""
    magnitude = abs(seconds)
    scale, unit = (1, "s") if magnitude >= 1 else (1e3, "ms") if magnitude >= 1e-3 else (1e6, "µs")
    return f"{seconds * scale:,.3g} {unit}"
