"""The reference kernel: plain torch, one row at a time, whatever the format and the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvhouse.engine.kv import KVTensors, LayerKV
from kvhouse.engine.packed import PackedRow, PackedStep
from kvhouse.spec.reach import Reach

#: Queries of a prefill chunk that are attended at once; bounds the scores' memory.
_TILE = 256


@dataclass(frozen=True, slots=True)
class _Places:
    """Where consecutive tokens of a request lie: int64 ``[n]`` each."""

    blocks: torch.Tensor
    offsets: torch.Tensor


class ReferenceKernel:
    """Attention by gathering what a row sees and computing it in float32.

    Args:
        kv: The pool's tensors.
        reason: Why this kernel was chosen, for people.
    """

    def __init__(self, kv: KVTensors, reason: str = "as asked") -> None:
        self.kv = kv
        self.about = f"reference, in plain torch: {reason}"

    def prepare(self, step: PackedStep) -> ReferenceStep:
        """Nothing is shared between layers here."""
        return ReferenceStep(self.kv, step)


class ReferenceStep:
    """One step's rows."""

    def __init__(self, kv: KVTensors, step: PackedStep) -> None:
        self._kv = kv
        self._rows = step.rows
        self._watch = step.watch

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scale: float,
        *,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``AttentionStep.attend``."""
        before = self._watch.turn("attention")
        kept = self._kv.layers[layer]
        keys, values = kept.vectors
        out = query.new_empty(*query.shape[:2], values.size)
        for row in self._rows:
            span = slice(row.start, row.stop)
            if key is not None and value is not None:
                self._watch.turn("kv_writes")
                written = _places(kept, row, row.row.first)
                keys.write(written.blocks, written.offsets, key[span])
                values.write(written.blocks, written.offsets, value[span])
                self._watch.turn("attention")
            seen = kept.reach.first(row.row.first)
            read = _places(kept, row, seen)
            k = keys.read(read.blocks, read.offsets)
            v = values.read(read.blocks, read.offsets)
            out[span] = attend_row(query[span], k, v, row, seen, kept.reach, scale, softcap, sinks)
        self._watch.turn(before)
        return out

    def attend_latent(
        self,
        layer: int,
        query: torch.Tensor,
        latent: torch.Tensor,
        rotary: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """See ``AttentionStep.attend_latent``."""
        before = self._watch.turn("attention")
        kept = self._kv.layers[layer]
        latents, rotaries = kept.vectors
        out = query.new_empty(*query.shape[:2], latents.size)
        for row in self._rows:
            span = slice(row.start, row.stop)
            self._watch.turn("kv_writes")
            written = _places(kept, row, row.row.first)
            latents.write(written.blocks, written.offsets, latent[span, None])
            rotaries.write(written.blocks, written.offsets, rotary[span, None])
            self._watch.turn("attention")
            seen = kept.reach.first(row.row.first)
            read = _places(kept, row, seen)
            v = latents.read(read.blocks, read.offsets)
            k = torch.cat((v, rotaries.read(read.blocks, read.offsets)), dim=-1)
            out[span] = attend_row(query[span], k, v, row, seen, kept.reach, scale)
        self._watch.turn(before)
        return out


def _places(kept: LayerKV, row: PackedRow, first: int) -> _Places:
    """Where a row's tokens lie from position ``first`` to its last."""
    table = torch.tensor(row.row.tables[kept.group])
    positions = torch.arange(first, row.length)
    entries = positions // kept.block_size - row.row.starts[kept.group]
    return _Places(table[entries], positions % kept.block_size)


def attend_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    row: PackedRow,
    seen: int,
    reach: Reach,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend a row's queries to what lies from position ``seen`` on.

    Query heads that share a KV head stand beside each other: ``[count, kv_heads, shared, dim]``.
    """
    count, heads = query.shape[:2]
    grouped = query.float().view(count, key.shape[1], heads // key.shape[1], -1)
    tiles = []
    for start in range(0, count, _TILE):
        tile = grouped[start : start + _TILE]
        first = row.row.first + start
        scores = torch.einsum("qkgd,nkd->kgqn", tile, key) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores.masked_fill_(_hidden(first, len(tile), seen, len(key), reach), -torch.inf)
        if sinks is not None:
            sink = sinks.float().view(*scores.shape[:2], 1, 1).expand(-1, -1, len(tile), 1)
            scores = torch.cat((scores, sink), dim=-1)
        weights = scores.softmax(-1)[..., : len(key)]
        tiles.append(torch.einsum("kgqn,nkd->qkgd", weights, value))
    return torch.cat(tiles).reshape(count, heads, -1).to(query.dtype)


def _hidden(first: int, count: int, seen: int, keys: int, reach: Reach) -> torch.Tensor:
    """Which keys, from position ``seen`` on, each query from ``first`` on must not see."""
    queries = torch.arange(first, first + count)[:, None]
    positions = torch.arange(seen, seen + keys)
    hidden = positions > queries
    if reach.kind == "window":
        hidden |= positions <= queries - reach.tokens
    elif reach.kind == "chunk":
        hidden |= positions < queries - queries % reach.tokens
    return hidden
