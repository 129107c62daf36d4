"""The number of blocks in a pool, as the log of the engine that had it says."""

from __future__ import annotations

import re
from pathlib import Path

from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec.fields import show_path

#: A number as engines print it; one with more digits counts nothing that there is.
_COUNT = r"(\d[\d,]{0,24})(?!\d)"
#: vLLM prints the blocks themselves in its V0 engine and wherever they are overridden.
_BLOCKS = re.compile(
    rf"# (?:GPU|CPU) blocks: {_COUNT}|num_gpu_blocks(?:_override)?[=: ]+{_COUNT}", re.ASCII
)
#: Its V1 engine prints tokens, which are whole blocks where all layers keep every token.
_TOKENS = re.compile(rf"KV cache size: {_COUNT} tokens", re.ASCII)
_MOST_LINE = 2**16


def blocks_from_log(path: str, layout: KVLayout) -> int:
    """Blocks of the pool that an engine's log names; of several the last, after a restart.

    Args:
        path: The log; read line by line.
        layout: The model that it served, in blocks of as many tokens as there.

    Raises:
        KvhouseError: The file cannot be read, names no pool, or names tokens that are no whole
            blocks: a rounded capacity, from which the number of blocks does not follow.
    """
    where = show_path(Path(path))
    blocks = None
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            while line := file.readline(_MOST_LINE):
                blocks = _in_line(line, layout, where) or blocks
    except OSError as error:
        raise KvhouseError(f"{where}: cannot be read: {error.strerror}") from None
    if blocks is None:
        raise KvhouseError(
            f"{where}: names no pool: looked for '# GPU blocks: N', 'num_gpu_blocks=N' and "
            "'KV cache size: N tokens'; give --kv-blocks"
        )
    return blocks


def _in_line(line: str, layout: KVLayout, where: str) -> int | None:
    if found := _BLOCKS.search(line):
        return int((found[1] or found[2]).replace(",", ""))
    if not (found := _TOKENS.search(line)):
        return None
    tokens = int(found[1].replace(",", ""))
    if layout.several_kinds:
        raise KvhouseError(
            f"{where}: says {tokens:,} tokens, which of a model with several kinds of layers is a "
            "rounded capacity: give --kv-blocks"
        )
    if tokens % layout.block_size:
        raise KvhouseError(
            f"{where}: {tokens:,} tokens are no whole blocks of {layout.block_size}: the block "
            "size is another, or the engine rounded; give --kv-blocks"
        )
    return tokens // layout.block_size
