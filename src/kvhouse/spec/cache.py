"""Where kvhouse keeps files that it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def model_cache() -> Path:
    """The directory for models' files, by the XDG base directory specification."""
    return _cache() / "models"


def profile_cache() -> Path:
    """The directory for profiles of this machine."""
    return _cache() / "profiles"


def machine_cache() -> Path:
    """The directory for what was measured of this machine alone."""
    return _cache() / "machines"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvhouse"
