"""From what a model keeps to bytes in a pool: groups of layers, blocks and slots."""

from kvhouse.layout.group import LayerGroup
from kvhouse.layout.layout import DEFAULT_BLOCK_SIZE, KVLayout, PoolSize

__all__ = ["DEFAULT_BLOCK_SIZE", "KVLayout", "LayerGroup", "PoolSize"]
