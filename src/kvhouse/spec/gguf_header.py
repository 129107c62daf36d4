"""The header of a GGUF file: metadata and tensor directory, without any tensor's data.

The format is described in the ggml repository, ``docs/gguf.md``. Every count in the file is
checked against the bytes that are left before it is believed, so that a damaged or hostile file
costs no more time and memory than its size allows.

The bytes may be the first ones of a longer file: where they end too early but the file goes on,
``NeedMore`` says so, and whoever holds the file reads on.
"""

from __future__ import annotations

import mmap
import stat
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from kvhouse.errors import SpecError
from kvhouse.spec.fields import show, show_path
from kvhouse.spec.ggml_types import TYPES

#: Large vocabularies make headers of some 20 MiB. More than this is not read.
MOST_HEADER_BYTES = 64 * 2**20
#: Longer arrays are vocabularies; shorter ones may say something of each layer.
MOST_KEPT = 2**12

#: More entries than any model has, whose experts are stacked in one tensor.
MOST_ENTRIES = 2**16
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
# The least bytes that an entry can take: lengths and types, with everything else empty.
_LEAST_METADATA_ENTRY = 8 + 4 + 1
_LEAST_TENSOR_ENTRY = 8 + 4 + 4 + 8


class NeedMore(Exception):
    """The header goes on after the bytes that are there; ``args[0]`` is how many it takes."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array of the metadata, of which only the length is kept: of texts, or a long one."""

    length: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the directory.

    Attributes:
        name: Its name, such as ``blk.0.attn_q.weight``.
        type: ggml's name of its type, such as ``Q4_1``.
        shape: Elements along each axis, the contiguous one first.
        offset: Where its data starts, in bytes from the start of the file.
        bytes: Size of its data.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    bytes: int

    @property
    def elements(self) -> int:
        """Number of its weights."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says about itself: metadata by key and tensors by name."""

    metadata: dict[str, object]
    tensors: dict[str, Tensor]


def read_header(path: Path) -> Header:
    """Read the header of a GGUF file.

    Raises:
        SpecError: The file is unreadable, no GGUF of a known version, truncated or contradictory.
    """
    where = show_path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SpecError(f"{where}: not a regular file")
        if status.st_size == 0:
            raise SpecError(f"{where}: not a GGUF file: it is empty")
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return parse_header(data, len(data), where)
    except OSError as error:
        raise SpecError(f"{where}: cannot be read: {error.strerror or error}") from None


def parse_header(data: bytes | mmap.mmap, size: int, where: str) -> Header:
    """Parse the header at the start of ``data``, the first bytes of a file of ``size`` bytes.

    Raises:
        SpecError: No GGUF of a known version, truncated or contradictory.
        NeedMore: The header is longer than ``data``.
    """
    return _Reader(data, size, where).header()


class _Reader:
    """Walks the header from its first byte; ``at`` is the next one to be read."""

    def __init__(self, data: bytes | mmap.mmap, size: int, where: str) -> None:
        self.data = data
        self.held = len(data)
        self.size = size
        self.end = min(size, MOST_HEADER_BYTES)
        self.at = 0
        self.where = where

    def error(self, problem: str) -> SpecError:
        return SpecError(f"{self.where}: damaged GGUF file: {problem} at byte {self.at}")

    def header(self) -> Header:
        self.need(min(4, self.size))
        if self.data[:4] != b"GGUF":
            raise SpecError(f"{self.where}: not a GGUF file: it starts otherwise")
        self.at = 4
        version = self.number("<I")
        if version not in _VERSIONS:
            raise SpecError(
                f"{self.where}: GGUF version {version} is not supported; versions 2 and 3 are, "
                "in little-endian order"
            )
        tensors, entries = self.number("<Q"), self.number("<Q")
        self.expect(entries, _LEAST_METADATA_ENTRY, "metadata entries")
        self.expect(tensors, _LEAST_TENSOR_ENTRY, "tensors")
        metadata: dict[str, object] = {}
        for _ in range(entries):
            key = self.text()
            if key in metadata:
                raise self.error(f"key {show(key)} is stated twice")
            metadata[key] = self.value(self.number("<I"))
        return Header(metadata, self.directory(tensors, metadata))

    def expect(self, count: int, least_bytes: int, what: str) -> None:
        """Refuse a count of things that cannot all lie in the rest of the file."""
        left = self.end - self.at
        if count * least_bytes > left:
            limit = "" if self.end == self.size else f" of the {self.end} that a header may have"
            raise self.error(f"truncated: {count} {what} do not fit in the {left} bytes{limit}")
        if least_bytes > 8 and count > MOST_ENTRIES:
            raise self.error(f"{count} {what}, of which {MOST_ENTRIES} are read at most,")

    def need(self, count: int) -> None:
        """Ask for more of the file where the next ``count`` bytes are in it but not held."""
        if self.at + count > self.held:
            raise NeedMore(self.at + count)

    def number(self, form: str) -> int:
        return int(self.scalar(form))

    def scalar(self, form: str) -> int | float | bool:
        size = struct.calcsize(form)
        self.expect(size, 1, "bytes")
        self.need(size)
        value: int | float | bool = struct.unpack_from(form, self.data, self.at)[0]
        self.at += size
        return value

    def text(self) -> str:
        length = self.number("<Q")
        self.expect(length, 1, "bytes of text")
        self.need(length)
        raw = self.data[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> object:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        raise self.error(f"metadata type {kind} is unknown")

    def array(self) -> Array | list[int | float | bool]:
        kind, length = self.number("<I"), self.number("<Q")
        if kind in _SCALARS:
            size = struct.calcsize(_SCALARS[kind])
            self.expect(length, size, "array items")
            self.need(length * size)
            start, self.at = self.at, self.at + length * size
            if length <= MOST_KEPT:
                return list(struct.unpack_from(f"<{length}{_SCALARS[kind][1]}", self.data, start))
        elif kind == _STRING:
            self.expect(length, 8, "strings")
            self.skip_texts(length)
        else:
            raise self.error(f"array of type {kind} is not supported")
        return Array(length)

    def skip_texts(self, count: int) -> None:
        # The longest part of a header is the vocabulary, hence no call for each of its strings.
        data, at, last = self.data, self.at, min(self.end, self.held) - 8
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > last:
                break
            at += 8 + unpack(data, at)[0]
        else:
            if at <= self.end:
                self.at = at
                return
        if self.held < self.end and at + 8 <= self.end:
            raise NeedMore(at + 8)
        raise self.error(f"truncated: an array of {count} strings runs past the end")

    def directory(self, count: int, metadata: dict[str, object]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for _ in range(count):
            tensor = self.tensor()
            if tensor.name in tensors:
                raise self.error(f"tensor {show(tensor.name)} is stated twice")
            tensors[tensor.name] = tensor
        start = self.data_start(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        room = self.size - start
        if tensors and sum(tensor.bytes for tensor in tensors.values()) > room:
            raise self.error(f"truncated: the tensors do not fit in the {max(room, 0)} bytes left")
        return {name: self.placed(tensor, start) for name, tensor in tensors.items()}

    def tensor(self) -> Tensor:
        """One entry of the directory, its offset still relative to the start of the data."""
        name = self.text()
        dimensions = self.number("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self.error(f"tensor {show(name)} has {dimensions} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))
        kind, offset = self.number("<I"), self.number("<Q")
        if kind not in TYPES:
            raise self.error(f"tensor {show(name)} has type {kind}, which ggml does not know,")
        type_name, block_elements, block_bytes = TYPES[kind]
        if 0 in shape or shape[0] % block_elements:
            raise self.error(f"tensor {show(name)} of type {type_name} has shape {shape}")
        size = prod(shape) // block_elements * block_bytes
        return Tensor(name, type_name, shape, offset, size)

    def data_start(self, alignment: object) -> int:
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.error(f"alignment {show(alignment)} is not a power of two")
        return -(-self.at // alignment) * alignment

    def placed(self, tensor: Tensor, start: int) -> Tensor:
        offset = start + tensor.offset
        if offset + tensor.bytes > self.size:
            end = offset + tensor.bytes
            raise SpecError(
                f"{self.where}: truncated GGUF file: tensor {show(tensor.name)} ends at byte {end} "
                f"of {self.size}"
            )
        return Tensor(tensor.name, tensor.type, tensor.shape, offset, tensor.bytes)
