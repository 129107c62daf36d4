"""The textbook formula, with the textbook's signature."""

from __future__ import annotations


def kv_cache_gb(layers: int, hidden: int, n: int, batch: int = 1, precision: float = 2) -> float:
    """GiB of keys and values: ``2 · n · layers · hidden · batch · precision`` bytes.

    Exact for multi-head attention, where keys and values are as wide as the model. With
    grouped queries give ``kv_heads · head_dim`` for ``hidden``, or use ``plan``, which reads
    the model's config.

    Args:
        layers: Decoder layers.
        hidden: Elements in one token's keys of one layer.
        n: Tokens of one sequence.
        batch: Sequences.
        precision: Bytes per element: 2 for fp16, 1 for fp8, 0.5 for int4 (scales not counted).
    """
    return 2 * n * layers * hidden * batch * precision / 2**30
