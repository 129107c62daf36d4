"""Stand-ins for pages and attention where only shapes matter: a model is tried with them."""

from __future__ import annotations

import torch

from kvhouse.engine.gathering import GatheringCache


class NoPages(GatheringCache):
    """Stands in for pages where only shapes matter: a token sees itself."""

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: object,
        **__: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give back what comes."""
        self.calls.append(layer_idx)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        """The token's own."""
        return query_length, self.get_seq_length()


class NoAttention:
    """Stands in for attention where only shapes matter."""

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
        """Zeros."""
        del layer, key, scale, softcap, sinks
        return query.new_zeros(*query.shape[:2], (query if value is None else value).shape[-1])

    def attend_latent(
        self,
        layer: int,
        query: torch.Tensor,
        latent: torch.Tensor,
        rotary: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Zeros."""
        del layer, rotary, scale
        return query.new_zeros(*query.shape[:2], latent.shape[-1])
