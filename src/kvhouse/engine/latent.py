"""Latent attention (MLA) over its latents, never over unfolded keys and values.

Of a latent ``c``, a head's key is ``W_k c`` beside the rotary part and its value is ``W_v c``. So
``q · (W_k c) = (W_kᵀ q) · c``, and a sum of weighted values is ``W_v`` times the sum of weighted
latents: both projections move to the side of the query (DeepSeek-V2, arXiv 2405.04434, 2.1.2).
"""

from __future__ import annotations

import torch

from kvhouse.engine.kernels import AttentionStep
from kvhouse.errors import UnsupportedModel


def attend_latent(
    step: AttentionStep,
    layer: int,
    module: torch.nn.Module,
    query: torch.Tensor,
    brought: tuple[torch.Tensor, torch.Tensor],
    value_dim: int,
    scale: float,
) -> torch.Tensor:
    """Attend, ``[T, heads, value_dim]``.

    Args:
        step: The kernel's step.
        layer: Number of the layer.
        module: The attention layer; its ``kv_b_proj`` unfolds latents.
        query: ``[1, heads, T, key_dim + rope_dim]``, the rotary part last.
        brought: The latents ``[1, 1, T, rank]`` and the rotary parts ``[1, 1, T, rope_dim]``.
        value_dim: Elements of an unfolded value.
        scale: Factor on q·k.

    Raises:
        UnsupportedModel: The layer unfolds its latents in another way.
    """
    unfold = getattr(module, "kv_b_proj", None)
    if not isinstance(unfold, torch.nn.Linear) or unfold.bias is not None:
        raise UnsupportedModel("its latents are not unfolded by one matrix, kv_b_proj")
    latent, rotary = (tensor[0, 0] for tensor in brought)
    heads, rope_dim = query.shape[1], rotary.shape[-1]
    weight = unfold.weight.view(heads, -1, latent.shape[-1])
    to_key, to_value = weight.split([weight.shape[1] - value_dim, value_dim], dim=1)
    plain, turned = query[0].split([query.shape[-1] - rope_dim, rope_dim], dim=-1)
    absorbed = torch.cat((plain @ to_key, turned), dim=-1).transpose(0, 1)
    out = step.attend_latent(layer, absorbed, latent, rotary, scale)
    return torch.einsum("thr,hvr->thv", out, to_value)
