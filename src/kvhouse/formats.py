"""KV formats: how many bytes a key or value vector takes once it is stored, scales included."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.errors import KvhouseError


@dataclass(frozen=True, slots=True)
class KVFormat:
    """A storage format for keys and values.

    Attributes:
        name: What the user types.
        dtype: The element type's full name, the one that configs and torch use.
        bits: Bits of one element.
        scale_bytes: Bytes of one scale; 0 for a format without scales.
        scaled: Elements that share a scale; None where a whole vector does.
    """

    name: str
    dtype: str
    bits: int
    scale_bytes: int = 0
    scaled: int | None = None

    def vector_bytes(self, elements: int) -> int:
        """Bytes of one head's vector of one token, its scales included."""
        return -(-elements * self.bits // 8) + self.scale_bytes * self.scales(elements)

    def scales(self, elements: int) -> int:
        """Scales of one head's vector of one token."""
        if not self.scale_bytes:
            return 0
        return -(-elements // (self.scaled or max(1, elements)))


# A scale is a bfloat16: the range of float32 in two bytes. A vector of one token and head has its
# own, so that nothing is calibrated; int4 has one for 32 elements, as llama.cpp's q4_0 (18 bytes
# for 32).
FORMATS = {
    "bf16": KVFormat("bf16", "bfloat16", 16),
    "fp16": KVFormat("fp16", "float16", 16),
    "fp32": KVFormat("fp32", "float32", 32),
    "fp8": KVFormat("fp8", "float8_e4m3fn", 8, scale_bytes=2),
    "int8": KVFormat("int8", "int8", 8, scale_bytes=2),
    "int4": KVFormat("int4", "int4", 4, scale_bytes=2, scaled=32),
}

#: Formats whose keys and values the engine rotates before it rounds them, unless it is told not to.
ROTATED = frozenset({"int4"})


def is_rotated(name: str, asked: bool | None) -> bool:
    """Whether keys and values are rotated, where that is ``asked`` for, refused or not said."""
    return name in ROTATED if asked is None else asked


def get_format(name: str) -> KVFormat:
    """Look a format up by its short name.

    Raises:
        KvhouseError: No such format; the message lists those there are.
    """
    try:
        return FORMATS[name]
    except KeyError:
        known = ", ".join(FORMATS)
        raise KvhouseError(f"unknown KV format {name!r}: choose one of {known}") from None
