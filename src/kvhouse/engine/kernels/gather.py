"""The plain torch kernel: gather a request's slots into a scratch buffer, then torch's SDPA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import PackedRow, PackedStep

#: Queries of a prefill chunk that are attended at once; bounds the causal mask.
_TILE = 256

#: Fewest slots of scratch. Decoding rows share it in groups, so it should hold several of them
#: and still lie in a CPU's cache.
_LEAST_SCRATCH = 4096


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decoding rows of similar length, padded to the longest.

    A padded place repeats a slot of its own row: it is masked, but what it holds must be finite,
    and a slot of anyone else may hold NaN.

    Attributes:
        places: The rows' places in the pack, int64 ``[G]``.
        slots: int64 ``[G * longest]``.
        mask: 0 or -inf, ``[G, 1, 1, longest]``; None when nothing is padded.
    """

    places: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A row with several tokens; ``slots`` are those of the whole request so far."""

    start: int
    stop: int
    slots: torch.Tensor


class GatherKernel:
    """Attention by gathering; its scratch and its mask are fixed in size.

    Args:
        kv: The pool's tensors.
        max_length: Longest request in tokens.
        dtype: The dtype that the model computes in.
    """

    def __init__(self, kv: KVTensors, max_length: int, dtype: torch.dtype) -> None:
        self.kv = kv
        longest = min(max_length, kv.blocks * kv.layout.block_size)
        self.scratch_slots = max(longest, _LEAST_SCRATCH)
        elements = self.scratch_slots * kv.vector_elements
        self.scratch = (
            torch.empty(elements, dtype=kv.dtype),
            torch.empty(elements, dtype=kv.dtype),
        )
        self.causal = _causal_mask(_TILE, max(longest, _TILE), dtype)

    def prepare(self, step: PackedStep) -> GatherStep:
        """Compute the slots of all tokens, and group the decoding rows."""
        return GatherStep(self, step)


class GatherStep:
    """One step's index tensors, used by every layer."""

    def __init__(self, kernel: GatherKernel, step: PackedStep) -> None:
        self._kernel = kernel
        block_size = kernel.kv.layout.block_size
        slots = [row.slots(block_size) for row in step.rows]
        written = [s[row.row.first :] for row, s in zip(step.rows, slots, strict=True)]
        self._written = torch.from_numpy(np.concatenate(written))
        rows = list(zip(step.rows, slots, strict=True))
        self._chunks = [
            _Chunk(row.start, row.stop, torch.from_numpy(s)) for row, s in rows if row.row.count > 1
        ]
        decoding = [(row, s) for row, s in rows if row.row.count == 1]
        self._groups = [
            _decode_group(group, kernel.causal.dtype)
            for group in _split(decoding, kernel.scratch_slots)
        ]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """See ``AttentionStep.attend``."""
        keys, values = self._kernel.kv.slots(layer)
        keys.index_copy_(0, self._written, key.to(keys.dtype))
        values.index_copy_(0, self._written, value.to(values.dtype))
        out = query.new_empty(*query.shape[:2], values.shape[-1])
        for group in self._groups:
            k, v = self._gather(keys, values, group.slots, query.dtype)
            out[group.places] = _decode(query[group.places], k, v, group.mask, scale)
        for chunk in self._chunks:
            k, v = self._gather(keys, values, chunk.slots, query.dtype)
            span = slice(chunk.start, chunk.stop)
            self._prefill(query[span], k, v, scale, out[span])
        return out

    def _gather(
        self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy slots, in order, into the scratch: two ``[len(slots), kv_heads, dim]``."""
        k, v = (
            torch.index_select(source, 0, slots, out=_shaped(buffer, len(slots), source))
            for source, buffer in zip((keys, values), self._kernel.scratch, strict=True)
        )
        return k.to(dtype), v.to(dtype)

    def _prefill(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        out: torch.Tensor,
    ) -> None:
        """Attend a chunk's queries, the last of the request, to all its tokens; fill ``out``."""
        first = len(key) - len(query)
        grouped = query.shape[1] != key.shape[1]
        for start in range(0, len(query), _TILE):
            stop = min(start + _TILE, len(query))
            seen = first + stop
            attended = scaled_dot_product_attention(
                query[start:stop].transpose(0, 1)[None],
                key[:seen].transpose(0, 1)[None],
                value[:seen].transpose(0, 1)[None],
                attn_mask=self._kernel.causal[_TILE - (stop - start) :, -seen:],
                scale=scale,
                enable_gqa=grouped,
            )
            out[start:stop] = attended[0].transpose(0, 1)


def _shaped(buffer: torch.Tensor, slots: int, like: torch.Tensor) -> torch.Tensor:
    shape = (slots, *like.shape[1:])
    return buffer[: math.prod(shape)].view(shape)


def _decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attend one query per row: query ``[G, query_heads, dim]``, key ``[G * longest, ...]``.

    The query heads that share a KV head stand as that head's queries, so that no key is
    repeated.
    """
    rows, heads = query.shape[:2]
    kv_heads = key.shape[1]
    attended = scaled_dot_product_attention(
        query.view(rows, kv_heads, heads // kv_heads, -1),
        key.view(rows, -1, *key.shape[1:]).transpose(1, 2),
        value.view(rows, -1, *value.shape[1:]).transpose(1, 2),
        attn_mask=mask,
        scale=scale,
    )
    return attended.reshape(rows, heads, -1)


def _causal_mask(queries: int, keys: int, dtype: torch.dtype) -> torch.Tensor:
    """A mask ``[queries, keys]`` of 0 and -inf, where the last query sees the last key.

    Its last ``n`` rows and ``m`` columns are the mask of any ``n`` last queries over ``m`` keys.
    """
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=dtype).masked_fill_(hidden, -math.inf)


_RowSlots = tuple[PackedRow, np.ndarray[tuple[int], np.dtype[np.int64]]]


def _split(rows: list[_RowSlots], scratch_slots: int) -> list[list[_RowSlots]]:
    """Group rows, longest first, so that each group, padded, fits the scratch."""
    groups: list[list[_RowSlots]] = []
    room = 0
    for row, slots in sorted(rows, key=lambda pair: -len(pair[1])):
        if not room:
            groups.append([])
            room = scratch_slots // len(slots)
        groups[-1].append((row, slots))
        room -= 1
    return groups


def _decode_group(rows: Sequence[_RowSlots], dtype: torch.dtype) -> _DecodeGroup:
    longest = max(len(slots) for _, slots in rows)
    padded = np.stack([np.pad(slots, (0, longest - len(slots)), mode="edge") for _, slots in rows])
    lengths = torch.tensor([len(slots) for _, slots in rows])
    mask = None
    if int(lengths.min()) < longest:
        hidden = torch.arange(longest) >= lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -math.inf)
        mask = mask[:, None, None, :]
    places = torch.tensor([row.start for row, _ in rows])
    return _DecodeGroup(places, torch.from_numpy(padded.reshape(-1)), mask)
