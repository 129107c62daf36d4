"""What a model keeps: layer kinds, the model's description, and the readers that produce it."""

from kvhouse.spec.model import DTYPE_BYTES, FullAttention, Layer, ModelSpec
from kvhouse.spec.packaged import find_gguf
from kvhouse.spec.resolve import catalogue, load

__all__ = [
    "DTYPE_BYTES",
    "FullAttention",
    "Layer",
    "ModelSpec",
    "catalogue",
    "find_gguf",
    "load",
]
