"""What the dynamic cache of Hugging Face transformers holds, where it is not the logical need.

The rules are those of transformers 5 and are measured, not derived: a test builds every causal-LM
architecture and compares.
"""

from __future__ import annotations

from kvhouse.planner.engines.kv_dtypes import PLAIN, kv_type, model_dtype
from kvhouse.planner.engines.slots import SlotOptions, stored
from kvhouse.planner.engines.view import EngineView, Group, held_parts
from kvhouse.spec.layers import (
    ChunkedAttention,
    Format,
    LatentAttention,
    Layer,
    SlidingAttention,
)
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.rare_layers import PendingTokens, SharedVector
from kvhouse.spec.tensors import Convolution, Tensor


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
        for part in stored(spec, layer)
    )


def dynamic_cache(spec: ModelSpec, options: SlotOptions) -> EngineView:
    """The dynamic cache as it has grown after so many tokens; nothing is allocated ahead.

    Raises:
        KvhouseError: Unknown dtype, or no length limit.
    """
    length = spec.length_limit(options.max_model_len)
    dtype = model_dtype(options.dtype or spec.dtype)
    fmt = kv_type(PLAIN, dtype, "transformers")

    def held(tokens: int) -> int:
        return options.batch * held_bytes(spec, tokens, fmt, dtype)

    layers = sum(bool(held_parts(layer)) for layer in spec.layers)
    group = Group("dynamic cache", layers, 0, 1, 1, held, "1", "bytes of its tensors at n tokens")
    return EngineView(
        engine="transformers, dynamic cache",
        version="5",
        groups=(group,),
        max_model_len=length,
        block_size=1,
        pool_block_bytes=0,
        available_bytes=None,
        blocks=None,
        kv_tokens=None,
        max_concurrency=None,
        estimated_max_len=None,
        needed=held,
        notes=(
            "it grows by concatenation, so a step holds the old and the new tensors of a layer",
        ),
        figures=(("kv_bytes", held(length)),),
    )


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
