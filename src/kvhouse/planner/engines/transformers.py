"""What the dynamic cache of Hugging Face transformers holds, where it is not the logical need.

The rules are those of transformers 5 and are measured, not derived: a test builds every causal-LM
architecture and compares.
"""

from __future__ import annotations

from dataclasses import replace

from kvhouse.spec.layers import (
    ChunkedAttention,
    Convolution,
    Format,
    FullAttention,
    LatentAttention,
    Layer,
    SlidingAttention,
    Tensor,
)
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.rare_layers import PendingTokens, SharedVector


def held_bytes(
    spec: ModelSpec, tokens: int, kv_format: Format, dtype: str, encoder_tokens: int = 0
) -> int:
    """Bytes in the tensors of a dynamic cache after one request of ``tokens`` tokens.

    Args:
        spec: The model.
        tokens: Tokens seen, prompt and output.
        kv_format: The format of the model's dtype; the cache knows no other.
        dtype: The dtype that the model runs in.
        encoder_tokens: Tokens of another input that layers attend to.
    """
    return sum(
        _held_tokens(part, encoder_tokens if part.across else tokens)
        * part.token_bytes(kv_format, dtype)
        + sum(_tensor_bytes(tensor, dtype) for tensor in part.state)
        for layer in spec.layers
        for part in _stored(spec, layer)
    )


def _stored(spec: ModelSpec, layer: Layer) -> tuple[Layer, ...]:
    """The layer's parts as they are stored."""
    if isinstance(layer, SharedVector):  # as keys and as values; beside compressed entries, once
        return (layer, layer)
    falcon = spec.architecture == "FalconForCausalLM"
    if falcon and isinstance(layer, FullAttention) and layer.kv_heads > 1:
        # Falcon's newer form stores its keys after repeating them for every query head.
        return (replace(layer, kv_heads=layer.query_heads),)
    return layer.parts


def _held_tokens(part: Layer, tokens: int) -> int:
    """Windows hold one token fewer: the query's own comes with the step.

    A window of one token cuts nothing off, since a slice up to minus zero is everything.
    """
    if isinstance(part, PendingTokens):
        return tokens % part.ratio
    window = None
    if isinstance(part, SlidingAttention | LatentAttention | SharedVector):
        window = part.window
    elif isinstance(part, ChunkedAttention):
        window = part.chunk
    if window is None:
        return part.kept_tokens(tokens)
    return tokens if window == 1 else min(tokens, window - 1)


def _tensor_bytes(tensor: Tensor | Convolution, dtype: str) -> int:
    """Convolutions hold as many columns as their kernel has, one more than they need."""
    if isinstance(tensor, Convolution):
        return tensor.bytes(dtype, columns=tensor.kernel)
    return tensor.bytes(dtype)
