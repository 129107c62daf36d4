"""A part of a whole, where there may be no whole."""

from __future__ import annotations


def ratio(part: float, whole: float) -> float:
    """``part / whole``: a share, or a rate; 0 of nothing."""
    return part / whole if whole else 0.0
