"""The header of a safetensors file: which tensors it holds, without any tensor's data.

A file starts with the header's length, 8 bytes in little-endian order, and the header, a JSON
object; the tensors' data follows without gaps
(https://huggingface.co/docs/safetensors/index#format). Everything is checked as the format demands
before it is believed, and a hostile header costs no more than its length allows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeGuard

from kvhouse.errors import SpecError
from kvhouse.spec.fields import show
from kvhouse.spec.json_file import parse_json_object

#: The format allows 100 MB. Sharded models have headers of some 100 KB, others of a few MB.
MOST_HEADER_BYTES = 32 * 2**20
#: Bytes at the start that hold the header's length.
PREFIX_BYTES = 8
_MOST_DIMENSIONS = 16
_MOST_NAME = 2**10
_MOST_ELEMENTS = 2**50

#: Bits of one element by the format's name of its dtype.
DTYPE_BITS = {
    **dict.fromkeys(["F64", "I64", "U64", "C64"], 64),
    **dict.fromkeys(["F32", "I32", "U32"], 32),
    **dict.fromkeys(["F16", "BF16", "I16", "U16"], 16),
    **dict.fromkeys(["BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"], 8),
    **dict.fromkeys(["F8_E4M3FNUZ", "F8_E5M2FNUZ"], 8),
    **dict.fromkeys(["F6_E2M3", "F6_E3M2"], 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        name: Its name, such as ``model.layers.0.mlp.up_proj.weight``.
        dtype: A key of ``DTYPE_BITS``.
        shape: Elements along each axis.
        bytes: Size of its data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        """Number of its elements, as stored."""
        return prod(self.shape)


def header_bytes(prefix: bytes, size: int, where: str) -> int:
    """The length of the header, from the first ``PREFIX_BYTES`` of a file of ``size`` bytes.

    Raises:
        SpecError: There is no header of that length.
    """
    if len(prefix) < PREFIX_BYTES:
        raise SpecError(f"{where}: not a safetensors file: it has {len(prefix)} bytes")
    length: int = struct.unpack("<Q", prefix[:PREFIX_BYTES])[0]
    if length > size - PREFIX_BYTES:
        raise SpecError(
            f"{where}: truncated, or not a safetensors file: its header takes {length} bytes, but "
            f"{size - PREFIX_BYTES} are left"
        )
    if length > MOST_HEADER_BYTES:
        raise SpecError(
            f"{where}: its header takes {length} bytes; at most {MOST_HEADER_BYTES} are read"
        )
    return length


def parse_header(header: bytes, size: int, where: str) -> dict[str, StoredTensor]:
    """The tensors of a file of ``size`` bytes from its header, without the length before it.

    Raises:
        SpecError: The header is no JSON object of tensors, or its tensors are not laid out one
            after the other up to the end of the file.
    """
    if not header.startswith(b"{"):
        raise SpecError(f"{where}: not a safetensors file: its header is not a JSON object")
    entries = parse_json_object(header, where)
    entries.pop("__metadata__", None)
    room = size - PREFIX_BYTES - len(header)
    tensors: dict[str, StoredTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        tensor, start = _tensor(name, entry, room, where)
        tensors[name] = tensor
        spans.append((start, start + tensor.bytes, name))
    _check_layout(spans, room, where)
    return tensors


def _tensor(name: str, entry: object, room: int, where: str) -> tuple[StoredTensor, int]:
    """One tensor, and where its data starts after the header."""
    try:
        return _checked(name, entry, room)
    except ValueError as error:
        raise SpecError(f"{where}: tensor {show(name)} {error}") from None


def _checked(name: str, entry: object, room: int) -> tuple[StoredTensor, int]:
    if len(name) > _MOST_NAME:
        raise ValueError(f"has a name of {len(name)} characters, more than any model's")
    if not isinstance(entry, Mapping):
        raise ValueError(f"is {show(entry)}, not an object")
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"has dtype {show(dtype)}, which the format does not have")
    if not _sizes(shape) or len(shape) > _MOST_DIMENSIONS or prod(shape) > _MOST_ELEMENTS:
        raise ValueError(f"has shape {show(shape)}, not a list of sizes")
    offsets = entry.get("data_offsets")
    if not _sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"has data_offsets {show(offsets)}, not a start and an end")
    start, end = offsets
    bits = prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or end - start != bits // 8:
        raise ValueError(
            f"takes {end - start} bytes by its data_offsets, but {bits / 8:g} by its shape and "
            "dtype"
        )
    if end > room:
        raise ValueError(f"ends at byte {end} of the {room} that follow the header")
    return StoredTensor(name, dtype, tuple(shape), end - start), start


def _sizes(value: object) -> TypeGuard[list[int]]:
    """Whether a value is a list of sizes; booleans are none."""
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 2**63 for item in value
    )


def _check_layout(spans: list[tuple[int, int, str]], room: int, where: str) -> None:
    at = 0
    for start, end, name in sorted(spans):
        if start != at:
            problem = "overlaps the one before it" if start < at else "leaves a gap before it"
            raise SpecError(f"{where}: tensor {show(name)} {problem} at byte {start}")
        at = end
    if at != room:
        raise SpecError(f"{where}: its tensors end at byte {at} of the {room} after the header")
