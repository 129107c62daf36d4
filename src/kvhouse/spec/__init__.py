"""What a model keeps: layer kinds, the model's description, and the readers that produce it."""

from kvhouse.spec.layers import (
    ChunkedAttention,
    Combined,
    CrossAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    SharedKV,
    SlidingAttention,
    State,
    describe,
)
from kvhouse.spec.model import DTYPE_BYTES, NO_LIMIT, ModelSpec
from kvhouse.spec.packaged import find_gguf
from kvhouse.spec.resolve import catalogue, load

__all__ = [
    "DTYPE_BYTES",
    "NO_LIMIT",
    "ChunkedAttention",
    "Combined",
    "CrossAttention",
    "FullAttention",
    "Indexer",
    "LatentAttention",
    "Layer",
    "ModelSpec",
    "SharedKV",
    "SlidingAttention",
    "State",
    "catalogue",
    "describe",
    "find_gguf",
    "load",
]
