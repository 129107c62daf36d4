"""KV formats: how many bytes a key or value vector takes once it is stored."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.errors import KvhouseError


@dataclass(frozen=True, slots=True)
class KVFormat:
    """A storage format for keys and values.

    ``dtype`` is the element type's full name, the one that configs and torch use.
    """

    name: str
    dtype: str
    element_bytes: int

    def vector_bytes(self, elements: int) -> int:
        """Bytes of one head's vector of one token."""
        return elements * self.element_bytes


FORMATS = {
    "bf16": KVFormat("bf16", "bfloat16", 2),
    "fp16": KVFormat("fp16", "float16", 2),
    "fp32": KVFormat("fp32", "float32", 4),
}


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
