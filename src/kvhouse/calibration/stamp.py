"""What a profile says of the model that it is of."""

from __future__ import annotations

import hashlib

from kvhouse.spec.model import ModelSpec


def fingerprint(spec: ModelSpec) -> str:
    """A short name for what decides a step's work, whatever the model is called."""
    work = (spec.layers, spec.hidden_size, spec.vocab_size, spec.parameters)
    return hashlib.sha256(repr(work).encode()).hexdigest()[:16]
