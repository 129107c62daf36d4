"""Asking a drive to end early, between two events, with what it has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stop:
    """A wish that whoever drives looks at between events; a signal handler may set it.

    Attributes:
        asked: Whether to end.
        cut_short: Whether a drive did, and left something undone.
    """

    asked: bool = False
    cut_short: bool = False
