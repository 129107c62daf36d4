"""What a model keeps: layer kinds, the model's description, and the readers that produce it."""

from kvhouse.spec.experts import Experts, Read
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
from kvhouse.spec.resolve import catalogue, hub_name, load
from kvhouse.spec.weight_formats import WEIGHT_FORMATS, Storage, WeightFormat

__all__ = [
    "DTYPE_BYTES",
    "NO_LIMIT",
    "WEIGHT_FORMATS",
    "ChunkedAttention",
    "Combined",
    "CrossAttention",
    "Experts",
    "FullAttention",
    "Indexer",
    "LatentAttention",
    "Layer",
    "ModelSpec",
    "Read",
    "SharedKV",
    "SlidingAttention",
    "State",
    "Storage",
    "WeightFormat",
    "catalogue",
    "describe",
    "find_gguf",
    "hub_name",
    "load",
]
