"""Attention over pages: the interface that every kernel fills, and the kernels."""

from __future__ import annotations

from typing import Protocol

import torch

from kvhouse.engine.packed import PackedStep


class AttentionStep(Protocol):
    """A kernel made ready for one step: whatever is the same for all layers is computed."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Write this step's keys and values into their slots, then attend over the pages.

        Args:
            layer: Number of the layer.
            query: ``[T, query_heads, key_dim]``, the step's tokens in the order of the pack.
            key: ``[T, kv_heads, key_dim]``.
            value: ``[T, kv_heads, value_dim]``.
            scale: Factor on q·k before the softmax.

        Returns:
            ``[T, query_heads, value_dim]``; each token saw its own request up to itself.
        """
        ...


class AttentionKernel(Protocol):
    """A way to compute attention over block tables."""

    def prepare(self, step: PackedStep) -> AttentionStep:
        """Compute once what all layers of ``step`` share, such as index tensors."""
        ...
