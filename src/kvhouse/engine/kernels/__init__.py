"""Attention over pages: the interface that every kernel fills, and the kernels."""

from __future__ import annotations

from typing import Protocol

import torch

from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import PackedStep


class AttentionStep(Protocol):
    """A kernel made ready for one step: whatever is the same for all layers is computed.

    ``T`` is the number of the step's tokens, in the order of the pack. Which tokens a layer sees,
    a window or all, is the spec's word; each token sees its own request up to itself.
    """

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
        """Write this step's keys and values into their places, then attend over the pages.

        Args:
            layer: Number of the layer whose pages are meant.
            query: ``[T, query_heads, key_dim]``.
            key: ``[T, kv_heads, key_dim]``; None where a layer reads what another one wrote.
            value: ``[T, kv_heads, value_dim]``; None likewise.
            scale: Factor on q·k before the softmax.
            softcap: ``c`` where the scaled scores pass through ``c * tanh(score / c)``.
            sinks: A score for each query head that takes part in the softmax and has no value.

        Returns:
            ``[T, query_heads, value_dim]`` in the dtype of ``query``.
        """
        ...

    def attend_latent(
        self,
        layer: int,
        query: torch.Tensor,
        latent: torch.Tensor,
        rotary: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """The same for latent attention, in its absorbed form: no key is ever unfolded.

        Args:
            layer: Number of the layer.
            query: ``[T, query_heads, rank + rope_dim]``: what meets the latent, then what meets
                the rotary part.
            latent: ``[T, rank]``.
            rotary: ``[T, rope_dim]``.
            scale: Factor on q·k before the softmax.

        Returns:
            ``[T, query_heads, rank]``: weighted latents, to be unfolded by the caller.
        """
        ...


class AttentionKernel(Protocol):
    """A way to compute attention over block tables.

    Attributes:
        kv: The pool's tensors.
        about: Which kernel this is and why, for people.
    """

    kv: KVTensors
    about: str

    def prepare(self, step: PackedStep) -> AttentionStep:
        """Compute once what all layers of ``step`` share, such as index tensors."""
        ...
