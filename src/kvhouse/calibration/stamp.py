"""What a profile says of the model, the machine and the versions that it is of."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvhouse.spec.model import ModelSpec

#: Packages whose versions may change how long steps take.
_PACKAGES = ("kvhouse", "torch", "transformers", "numba", "numpy")


def fingerprint(spec: ModelSpec) -> str:
    """A short name for what decides a step's work, whatever the model is called."""
    work = (spec.layers, spec.hidden_size, spec.vocab_size, spec.parameters)
    return hashlib.sha256(repr(work).encode()).hexdigest()[:16]


def processor() -> str:
    """What this machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """What computes here, and in which version."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
