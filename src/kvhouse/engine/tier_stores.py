"""Where the blocks of tiers below the pool lie: in host memory, or in files."""

from __future__ import annotations

import shutil
import struct
import tempfile
import weakref
from pathlib import Path
from typing import Protocol
from zlib import crc32

import numpy as np
import torch

from kvhouse.engine.available import allocate
from kvhouse.errors import KvhouseError

#: What a block's file begins with: how often its slot had been written, and the content's CRC-32.
_HEADER = struct.Struct("<QI")


class TierStore(Protocol):
    """Places for blocks. Whatever goes wrong with one is told, never raised."""

    def write(self, slot: int, content: torch.Tensor) -> bool:
        """Keep a block's bytes, uint8 ``[block_bytes]``; False where that came to nothing."""
        ...

    def read(self, slot: int) -> torch.Tensor | None:
        """What was written last; None where it is not there any more, or not as it was."""
        ...


class HostStore:
    """A second pool in this machine's memory.

    Args:
        slots: Blocks that it holds.
        block_bytes: Bytes of each.

    Raises:
        KvhouseError: The machine has not that much memory free.
    """

    def __init__(self, slots: int, block_bytes: int) -> None:
        self._blocks = allocate(slots * block_bytes).view(slots, block_bytes)

    def write(self, slot: int, content: torch.Tensor) -> bool:
        """See ``TierStore``."""
        self._blocks[slot] = content
        return True

    def read(self, slot: int) -> torch.Tensor | None:
        """See ``TierStore``."""
        return self._blocks[slot]


class FileStore:
    """One file for each block, in a directory of its own that goes with the store.

    A file that is missing, cut short, changed, or left from an earlier writing of its slot is
    found out by its header, and is a miss.

    Args:
        parent: Where the directory is made; it must be there. None for the system's place for
            temporary files, which may lie in memory.
        block_bytes: Bytes of a block.

    Raises:
        KvhouseError: The directory cannot be made.
    """

    def __init__(self, parent: Path | None, block_bytes: int) -> None:
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="kvhouse-", dir=parent))
        except OSError as error:
            raise KvhouseError(f"no place for a tier's files: {error}") from None
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self._block_bytes = block_bytes
        self._written: dict[int, int] = {}

    def path(self, slot: int) -> Path:
        """The file of a slot."""
        return self.directory / f"{slot:09d}.kv"

    def write(self, slot: int, content: torch.Tensor) -> bool:
        """See ``TierStore``."""
        times = self._written.get(slot, 0) + 1
        self._written[slot] = times
        content_bytes = content.contiguous().numpy().data
        try:
            with self.path(slot).open("wb") as file:
                file.write(_HEADER.pack(times, crc32(content_bytes)))
                file.write(content_bytes)
        except OSError:  # such as a full disk
            return False
        return True

    def read(self, slot: int) -> torch.Tensor | None:
        """See ``TierStore``."""
        try:
            stored = np.fromfile(self.path(slot), dtype=np.uint8)
        except OSError:
            return None
        content = stored[_HEADER.size :]
        if len(content) != self._block_bytes:
            return None
        expected = _HEADER.pack(self._written.get(slot, 0), crc32(content.data))
        return torch.from_numpy(content) if stored[: _HEADER.size].tobytes() == expected else None
