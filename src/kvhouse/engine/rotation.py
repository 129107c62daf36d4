"""The Walsh-Hadamard rotation that spreads outliers before vectors are rounded to few bits.

The matrix is orthonormal and symmetric, so it is its own inverse, and rotating both sides of a
dot product leaves it unchanged. (QuaRot, Ashkboos et al. 2024, arXiv 2404.00456, rotates the KV
cache so.)
"""

from __future__ import annotations

import torch


def rotation_size(size: int) -> int:
    """Side of the rotation's blocks for vectors of ``size``: its largest power-of-two divisor."""
    return size & -size


def rotate(vectors: torch.Tensor) -> torch.Tensor:
    """Rotate float32 vectors, ``[..., size]``; rotating twice gives them back.

    Where ``size`` is not a power of two, each run of ``rotation_size(size)`` elements is rotated
    by itself.
    """
    side = rotation_size(vectors.shape[-1])
    rotated = vectors.reshape(-1, side)
    step = 1
    while step < side:
        pairs = rotated.view(-1, side // (2 * step), 2, step)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        rotated = torch.stack((first + second, first - second), dim=2).reshape(-1, side)
        step *= 2
    scaled: torch.Tensor = rotated.view(vectors.shape) * side**-0.5
    return scaled
