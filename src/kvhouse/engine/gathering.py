"""Requests one by one, with the model's own attention: its cache is read out of the pages.

For models whose attention does more than a kernel over pages can do: a bias for each position, a
mask that follows from the keys, positions that it counts itself.
"""

from __future__ import annotations

import torch

from kvhouse.engine.kv import KVTensors, LayerKV
from kvhouse.engine.packed import PackedRow
from kvhouse.engine.state_cache import StateCache
from kvhouse.spec import ModelSpec


class GatheringCache(StateCache):
    """A cache for one row: what a model brings goes into pages, and all it sees comes back.

    Args:
        kv: The pool's tensors.
        row: The row; its tokens are what one forward pass computes.
        spec: What the model keeps.
    """

    def __init__(self, kv: KVTensors, row: PackedRow, spec: ModelSpec) -> None:
        super().__init__()
        self._kv = kv
        self._row = row
        self._spec = spec
        self.calls: list[int] = []

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: object,
        **__: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write ``[1, heads, T, dim]`` and return the same of every token the row sees."""
        self.calls.append(layer_idx)
        kept = self._kv.layers[layer_idx]
        written = self._places(kept, self._row.row.first)
        read = self._places(kept, kept.reach.first(self._row.row.first))
        gathered = []
        for new, vectors in zip((key_states, value_states), kept.vectors, strict=True):
            vectors.write(*written, new[0].transpose(0, 1))
            gathered.append(vectors.read(*read).to(new.dtype).transpose(0, 1)[None])
        return gathered[0], gathered[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - the interface
        """Tokens before those of this pass."""
        return self._row.row.first

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """How many tokens ``update`` gives back, and the position of the first."""
        kept = self._kv.layers.get(layer_idx)
        seen = kept.reach.first(self._row.row.first) if kept else 0
        return self._row.row.first - seen + query_length, seen

    @property
    def is_sliding(self) -> list[bool]:
        """Which layers do not see everything."""
        layers = (self._kv.layers.get(number) for number in range(len(self._spec.layers)))
        return [kept is not None and kept.reach.kind != "all" for kept in layers]

    @property
    def is_linear(self) -> list[bool]:
        """Which layers keep no tokens."""
        return [number not in self._kv.layers for number in range(len(self._spec.layers))]

    @property
    def is_dummy(self) -> list[bool]:
        """None."""
        return [False] * len(self._spec.layers)

    def _places(self, kept: LayerKV, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks and offsets of the row's tokens from position ``first`` to its last."""
        row = self._row.row
        positions = torch.arange(first, self._row.length)
        table = torch.tensor(row.tables[kept.group])
        entries = positions // kept.block_size - row.starts[kept.group]
        return table[entries], positions % kept.block_size
