"""A memory map as pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.replayer.recorder import PoolMap
from kvhouse.views.palette import LIGHT, OWNERS

#: Width and height, about as many pixels as a map is drawn with, so that hatching stays regular.
_SIZE = (576, 256)

Array = np.ndarray[Any, Any]


def map_pixels(pool: PoolMap, end: float) -> Array:
    """A memory map as red, green and blue of each pixel, of shape [height, width, 3].

    Args:
        pool: The map.
        end: Seconds at its right edge.
    """
    width, height = _SIZE
    rows = len(pool.blocks)
    panel = _rgb("panel")
    if not rows or not len(pool.times):
        return np.full((height, width, 3), np.round(panel * 255), dtype=np.uint8)
    moments = np.searchsorted(pool.times, (np.arange(width) + 0.5) * end / width, "right") - 1
    cells = np.ix_(np.maximum(moments, 0), np.arange(height) * rows // height)
    kinds, owners = pool.kinds[cells].T, pool.owners[cells].T
    numbers = np.array([0, *(record.index for record in pool.requests)])[owners]
    colours = np.array([_rgb(f"owner-{place}") for place in range(OWNERS)])[numbers % OWNERS]
    y, x = np.indices(kinds.shape)
    pixels = np.select(
        [mask[..., None] for mask in _masks(kinds, x, y)],
        [
            colours,
            _mix(colours, 0.45, panel),
            _mix(colours, 0.2, panel),
            _rgb("shared-block"),
            _rgb("cached"),
            _rgb("scattered"),
        ],
        panel,
    )
    painted: Array = np.round(pixels * 255).astype(np.uint8)
    return painted


def _masks(kinds: Array, x: Array, y: Array) -> list[Array]:
    """Where a request's colour stands, its middle and its pale shade, and three plain colours."""
    used, shared, reserved, internal, external, cached = (
        kinds == LEDGER_CLASSES.index(name)
        for name in ("used", "shared", "reserved", "internal", "external", "cached")
    )
    rising, falling = (x + y) % 8, (x - y) % 8
    return [
        used | (shared & (falling < 3)),
        reserved | (internal & (rising < 2)),
        internal,
        shared,
        cached,
        external & (falling < 1),
    ]


def _mix(colours: Array, share: float, ground: Array) -> Array:
    return colours * share + ground * (1 - share)


def _rgb(name: str) -> Array:
    hexadecimal = LIGHT[name]
    return np.array([int(hexadecimal[at : at + 2], 16) / 255 for at in (1, 3, 5)])
